package healthz

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"svcproxy.dev/svcproxy/proxier/report"
	"svcproxy.dev/svcproxy/source"
)

// Watch tells of the connection of a source. status must give one.
func (m *Metrics) Watch(name string, status func() source.Status) {
	gauge := func(metric, help string, value func(*source.Connection) float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Namespace: "svcproxy", Name: metric, Help: help, ConstLabels: prometheus.Labels{"source": name},
		}, func() float64 { return value(status().Connection) })
	}
	m.registry.MustRegister(
		gauge("source_connected", "1 while the server of a source is being watched, 0 while its last known services are kept.", func(c *source.Connection) float64 {
			return float64(one(c.Connected))
		}),
		gauge("source_connection_changed_timestamp_seconds", "Since when svcproxy_source_connected is as it is.", func(c *source.Connection) float64 {
			return seconds(c.Since)
		}))
}

// WatchProblems reports what hinders a source, by kind. problems returns all kinds each time.
func (m *Metrics) WatchProblems(name string, problems func() map[string]bool) {
	for kind := range problems() {
		m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Namespace: "svcproxy", Name: "source_trouble", ConstLabels: prometheus.Labels{"source": name, "kind": kind},
			Help: "1 while something hinders a source, which status tells of: of files that their directory cannot be read or watched, or last good versions not be kept.",
		}, func() float64 { return float64(one(problems()[kind])) }))
	}
}

// WatchStalls has the work that makes no progress asked for each time that metrics are.
func (m *Metrics) WatchStalls(stalls func() []report.Stall) {
	m.registry.MustRegister(collector{[]*prometheus.Desc{stalledDesc}, func(ch chan<- prometheus.Metric) {
		for _, s := range stalls() {
			ch <- prometheus.MustNewConstMetric(stalledDesc, prometheus.GaugeValue, time.Since(s.Since).Seconds(), s.Family.Title(), s.Work, s.For)
		}
	}})
}

var stalledDesc = desc("stalled_seconds", "For how long work that makes no progress waits, by what it waits for; there is none of the rest.", "ip_family", "work", "waits_for")
