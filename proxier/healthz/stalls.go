package healthz

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"svcproxy.dev/svcproxy/proxier/report"
)

// WatchStalls has the work that makes no progress asked for each time that metrics are.
func (m *Metrics) WatchStalls(stalls func() []report.Stall) {
	m.registry.MustRegister(collector{[]*prometheus.Desc{stalledDesc}, func(ch chan<- prometheus.Metric) {
		for _, s := range stalls() {
			ch <- prometheus.MustNewConstMetric(stalledDesc, prometheus.GaugeValue, time.Since(s.Since).Seconds(), s.Family.Title(), s.Work, s.For)
		}
	}})
}

var stalledDesc = desc("stalled_seconds", "For how long work that makes no progress waits, by what it waits for; there is none of the rest.", "ip_family", "work", "waits_for")
