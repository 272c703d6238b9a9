package healthz

import "github.com/prometheus/client_golang/prometheus"

// Register has /metrics tell what c collects too.
func (m *Metrics) Register(c prometheus.Collector) { m.registry.MustRegister(c) }
