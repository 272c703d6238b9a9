package healthz

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"svcproxy.dev/svcproxy/proxier/report"
	"svcproxy.dev/svcproxy/source"
)

// Watch tells of the connection of a source. status must give one.
func (m *Metrics) Watch(name string, status func() source.Status) {
	m.Register(collector(func(ch chan<- prometheus.Metric) {
		c := status().Connection
		number(ch, one(c.Connected), "source_connected",
			"1 while the server of a source is being watched, 0 while its last known services are kept.", "source", name)
		send(ch, prometheus.GaugeValue, seconds(c.Since), "source_connection_changed_timestamp_seconds",
			"Since when svcproxy_source_connected is as it is.", "source", name)
	}))
}

// WatchProblems reports what hinders a source, by kind. problems returns all kinds each time.
func (m *Metrics) WatchProblems(name string, problems func() map[string]bool) {
	m.Register(collector(func(ch chan<- prometheus.Metric) {
		for kind, is := range problems() {
			number(ch, one(is), "source_trouble", "1 while something hinders a source, which status tells of: "+
				"of files that their directory cannot be read or watched, or last good versions not be kept.", "source", name, "kind", kind)
		}
	}))
}

// WatchStalls has the work that makes no progress asked for each time that metrics are.
func (m *Metrics) WatchStalls(stalls func() []report.Stall) {
	m.Register(collector(func(ch chan<- prometheus.Metric) {
		for _, s := range stalls() {
			send(ch, prometheus.GaugeValue, time.Since(s.Since).Seconds(), "stalled_seconds",
				"For how long work that makes no progress waits, by what it waits for; there is none of the rest.",
				"ip_family", s.Family.Title(), "work", s.Work, "waits_for", s.For)
		}
	}))
}
