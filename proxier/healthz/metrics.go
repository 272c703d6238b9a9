package healthz

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"svcproxy.dev/svcproxy/proxier"
)

// Metrics counts what the Loop does. Names are kube-proxy's, with our prefix.
type Metrics struct {
	registry *prometheus.Registry

	duration, full, partial *prometheus.HistogramVec
	programming             *prometheus.HistogramVec
	last, lastQueued        *prometheus.GaugeVec
	failures, flows         *prometheus.CounterVec
	services, endpoints     *prometheus.GaugeVec
	unserved                *prometheus.GaugeVec
	answers, disturbed      *prometheus.CounterVec
}

// buckets of sync times, in seconds: 1 ms to 16 s, as kube-proxy's.
var buckets = prometheus.ExponentialBuckets(0.001, 2, 15)

// NewMetrics returns metrics in a registry of their own.
func NewMetrics(version string) *Metrics {
	m := &Metrics{
		registry:    prometheus.NewRegistry(),
		duration:    histogram("sync_proxy_rules_duration_seconds", "Time of a sync, failed ones too."),
		full:        histogram("sync_full_proxy_rules_duration_seconds", "Time of a sync that compared everything with the kernel."),
		partial:     histogram("sync_partial_proxy_rules_duration_seconds", "Time of a sync that wrote only what had changed."),
		programming: histogram("network_programming_duration_seconds", "Time from the arrival of the oldest change in a sync until the kernel held it."),
		last:        gauge("sync_proxy_rules_last_timestamp_seconds", "When a sync last succeeded."),
		lastQueued:  gauge("sync_proxy_rules_last_queued_timestamp_seconds", "When the oldest change of the last sync that had any arrived."),
		failures:    counter("sync_proxy_rules_failures_total", "Syncs that failed.", "ip_family"),
		flows:       counter("conntrack_deleted_entries_total", "UDP flows removed because their endpoint or service was gone.", "ip_family"),
		services:    gauge("services", "Services in use."),
		endpoints:   gauge("endpoints", "Endpoints of all services in use."),
		unserved:    gauge("virtual_servers_unserved", "Virtual servers of services that the kernel lacks something for or another program has, in ipvs mode."),
		disturbed:   counter("kernel_changes_by_others_total", "Changes of our kernel objects by other programs, as far as the kernel tells.", "ip_family"),
		answers:     counter("proxy_health_total", "Answers of /healthz and /livez.", "path", "code"),
	}
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Namespace: "svcproxy", Name: "build_info", Help: "Always 1.",
		ConstLabels: prometheus.Labels{"version": version},
	})
	build.Set(1)
	m.registry.MustRegister(build,
		m.duration, m.full, m.partial, m.programming, m.last, m.lastQueued,
		m.failures, m.flows, m.services, m.endpoints, m.unserved, m.answers, m.disturbed,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Synced counts one sync.
func (m *Metrics) Synced(r proxier.SyncResult) {
	fam, secs := r.Family.String(), r.Duration.Seconds()
	m.duration.WithLabelValues(fam).Observe(secs)
	if r.Full {
		m.full.WithLabelValues(fam).Observe(secs)
	} else {
		m.partial.WithLabelValues(fam).Observe(secs)
	}
	m.services.WithLabelValues(fam).Set(float64(r.Services))
	m.endpoints.WithLabelValues(fam).Set(float64(r.Endpoints))
	m.flows.WithLabelValues(fam) // 0 before the first is removed
	if !r.Queued.IsZero() {
		m.lastQueued.WithLabelValues(fam).Set(float64(r.Queued.UnixNano()) / 1e9)
	}
	failures := m.failures.WithLabelValues(fam) // makes it 0 before the first failure, so that a rate sees that one
	if r.Err != nil {
		failures.Inc()
		return
	}
	unserved := 0
	if r.Unserved != nil {
		unserved = r.Unserved.N
	}
	m.unserved.WithLabelValues(fam).Set(float64(unserved))
	done := r.Start.Add(r.Duration)
	m.last.WithLabelValues(fam).Set(float64(done.UnixNano()) / 1e9)
	if !r.Queued.IsZero() {
		m.programming.WithLabelValues(fam).Observe(done.Sub(r.Queued).Seconds())
	}
}

// FlowsDeleted counts UDP flows that were removed.
func (m *Metrics) FlowsDeleted(fam proxier.Family, n int) {
	m.flows.WithLabelValues(fam.String()).Add(float64(n))
}

// Disturbed counts a foreign change of our kernel objects.
func (m *Metrics) Disturbed(fam proxier.Family) { m.disturbed.WithLabelValues(fam.String()).Inc() }

// Handler answers /metrics.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4})
}

func histogram(name, help string) *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Namespace: "svcproxy", Name: name, Help: help, Buckets: buckets,
	}, []string{"ip_family"})
}

func gauge(name, help string) *prometheus.GaugeVec {
	return prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "svcproxy", Name: name, Help: help}, []string{"ip_family"})
}

func counter(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "svcproxy", Name: name, Help: help}, labels)
}
