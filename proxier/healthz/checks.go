package healthz

import "github.com/prometheus/client_golang/prometheus"

// CheckAnswers are the answers of health checks of endpoints of one type with one outcome.
type CheckAnswers struct {
	Type    string // as in files: "tcp"
	Outcome string
	Count   uint64
	Sum     float64            // of how long they took, in seconds
	Buckets map[float64]uint64 // by upper bound in seconds: how many took no longer
}

// WatchChecks has answers asked for each time that metrics are: all types and outcomes, each time.
func (m *Metrics) WatchChecks(answers func() []CheckAnswers) {
	m.registry.MustRegister(collector{[]*prometheus.Desc{checksDesc}, func(ch chan<- prometheus.Metric) {
		for _, n := range answers() {
			ch <- prometheus.MustNewConstHistogram(checksDesc, n.Count, n.Sum, n.Buckets, n.Type, n.Outcome)
		}
	}})
}

var checksDesc = desc("endpoint_check_duration_seconds", "Time of a health check of an endpoint, by its type and what came of it.", "type", "outcome")
