package healthz

import (
	"net/http"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"svcproxy.dev/svcproxy/proxier/loop"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// Metrics counts what the Loop does. What kube-proxy has too has its name after our
// prefix, its labels and its buckets; docs/metrics.md lists all.
type Metrics struct {
	registry *prometheus.Registry

	duration               *prometheus.HistogramVec
	byFull                 map[bool]*prometheus.HistogramVec // of full syncs, and of partial ones
	programming, flowLooks *prometheus.HistogramVec
	last, lastQueued       *prometheus.GaugeVec
	failures, flows        *prometheus.CounterVec
	ofMode                 map[string]*prometheus.CounterVec
	unserved               *prometheus.GaugeVec
	answers                map[string]*prometheus.CounterVec // by path
	disturbed, repairs     *prometheus.CounterVec
	reloaded               prometheus.Gauge
}

// buckets of sync times, in seconds: 1 ms to 16 s, as kube-proxy's.
var buckets = prometheus.ExponentialBuckets(0.001, 2, 15)

// programmingBuckets are kube-proxy's, with its empty first one.
var programmingBuckets = slices.Concat([]float64{0, 0.25, 0.5},
	prometheus.LinearBuckets(1, 1, 59), prometheus.LinearBuckets(60, 5, 12), prometheus.LinearBuckets(120, 30, 7))

// Causes of a failed sync that kube-proxy counts, by the mode that they are of.
const (
	RestoreFailed = "iptables_restore" // iptables-restore, also that of ipvs mode
	NftablesSync  = "nftables_sync"

	partialFailed = "iptables_partial_restore" // RestoreFailed in a sync of what had changed
)

// NewMetrics returns metrics in a registry of their own.
func NewMetrics(version string) *Metrics {
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		duration: histogram("sync_proxy_rules_duration_seconds", "Time of a sync, failed ones too.", buckets),
		byFull: map[bool]*prometheus.HistogramVec{
			true:  histogram("sync_full_proxy_rules_duration_seconds", "Time of a sync that compared everything with the kernel.", buckets),
			false: histogram("sync_partial_proxy_rules_duration_seconds", "Time of a sync that wrote only what had changed.", buckets),
		},
		programming: histogram("network_programming_duration_seconds", "Time from a change of a file, or the trigger time that the API tells, until the kernel held it.", programmingBuckets),
		flowLooks:   histogram("conntrack_reconciler_sync_duration_seconds", "Time of a look for stale UDP flows.", buckets),
		last:        gauge("sync_proxy_rules_last_timestamp_seconds", "When a sync last succeeded."),
		lastQueued:  gauge("sync_proxy_rules_last_queued_timestamp_seconds", "When there last came something to sync."),
		failures:    counter("sync_proxy_rules_failures_total", "Syncs that failed, in any mode.", "ip_family"),
		ofMode: map[string]*prometheus.CounterVec{
			RestoreFailed: counter("sync_proxy_rules_iptables_restore_failures_total", "Syncs of iptables or ipvs mode that failed because iptables-restore did.", "ip_family"),
			partialFailed: counter("sync_proxy_rules_iptables_partial_restore_failures_total", "Syncs of iptables mode that failed and wrote only what had changed.", "ip_family"),
			NftablesSync:  counter("sync_proxy_rules_nftables_sync_failures_total", "Syncs of nftables mode that failed.", "ip_family"),
		},
		flows:     counter("conntrack_reconciler_deleted_entries_total", "UDP flows removed because their endpoint or service was gone.", "ip_family"),
		unserved:  gauge("virtual_servers_unserved", "Virtual servers of services that the kernel lacks something for or another program has, in ipvs mode."),
		disturbed: counter("kernel_changes_by_others_total", "Changes of our kernel objects by other programs, as far as the kernel tells.", "ip_family"),
		repairs:   counter("kernel_repairs_total", "Syncs that repaired what the kernel held, by why they did.", "ip_family", "cause"),
		answers: map[string]*prometheus.CounterVec{
			"healthz": counter("proxy_healthz_total", "Answers of /healthz.", "code"),
			"livez":   counter("proxy_livez_total", "Answers of /livez.", "code"),
		},
		reloaded: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: "svcproxy", Name: "config_last_reload_success_timestamp_seconds", Help: "When service files or svcproxy.toml were last read and taken over.",
		}),
	}
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Namespace: "svcproxy", Name: "build_info", Help: "Always 1.",
		ConstLabels: prometheus.Labels{"version": version},
	})
	build.Set(1)
	m.registry.MustRegister(build,
		m.duration, m.byFull[true], m.byFull[false], m.programming, m.flowLooks, m.last, m.lastQueued,
		m.failures, m.ofMode[partialFailed], m.ofMode[RestoreFailed], m.ofMode[NftablesSync],
		m.flows, m.unserved, m.answers["healthz"], m.answers["livez"], m.disturbed, m.repairs, m.reloaded,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	for _, code := range []string{"200", "503"} {
		for _, c := range m.answers {
			c.WithLabelValues(code)
		}
	}
	return m
}

// Follow has all series of a family from the start: a rate sees the first failure only of
// a counter that was 0 before it.
func (m *Metrics) Follow(families ...policy.Family) {
	for _, f := range families {
		fam := f.Title()
		for _, h := range []*prometheus.HistogramVec{m.duration, m.byFull[true], m.byFull[false], m.programming, m.flowLooks} {
			h.WithLabelValues(fam)
		}
		for _, c := range []*prometheus.CounterVec{m.failures, m.ofMode[partialFailed], m.ofMode[RestoreFailed], m.ofMode[NftablesSync], m.flows, m.disturbed} {
			c.WithLabelValues(fam)
		}
		for _, g := range []*prometheus.GaugeVec{m.last, m.lastQueued, m.unserved} {
			g.WithLabelValues(fam)
		}
		for _, c := range loop.RepairCauses() {
			m.repairs.WithLabelValues(fam, string(c))
		}
	}
}

// Synced counts one sync.
func (m *Metrics) Synced(r loop.SyncResult) {
	fam, secs := r.Family.Title(), r.Duration.Seconds()
	m.duration.WithLabelValues(fam).Observe(secs)
	m.byFull[r.Full].WithLabelValues(fam).Observe(secs)
	if r.Err != nil {
		m.failures.WithLabelValues(fam).Inc()
		return
	}
	unserved := 0
	if r.Unserved != nil {
		unserved = r.Unserved.N
	}
	m.unserved.WithLabelValues(fam).Set(float64(unserved))
	done := r.Start.Add(r.Duration)
	m.last.WithLabelValues(fam).Set(seconds(done))
	for _, t := range r.Triggers {
		m.programming.WithLabelValues(fam).Observe(max(0, done.Sub(t).Seconds()))
	}
	for _, c := range r.Repairs {
		m.repairs.WithLabelValues(fam, string(c)).Inc()
	}
}

// SyncFailed counts a failed sync under kube-proxy's names too. why is RestoreFailed or
// NftablesSync; anything else is counted by Synced alone.
func (m *Metrics) SyncFailed(r loop.SyncResult, why string) {
	fam := r.Family.Title()
	if c := m.ofMode[why]; c != nil {
		c.WithLabelValues(fam).Inc()
	}
	if why == RestoreFailed && !r.Full {
		m.ofMode[partialFailed].WithLabelValues(fam).Inc()
	}
}

// Queued notes that there is something to sync.
func (m *Metrics) Queued(fam policy.Family, at time.Time) {
	m.lastQueued.WithLabelValues(fam.Title()).Set(seconds(at))
}

// Reloaded notes that files were read and taken over.
func (m *Metrics) Reloaded(at time.Time) { m.reloaded.Set(seconds(at)) }

// FlowsLooked counts a look for stale UDP flows, and those that were removed.
func (m *Metrics) FlowsLooked(fam policy.Family, n int, took time.Duration) {
	m.flows.WithLabelValues(fam.Title()).Add(float64(n))
	m.flowLooks.WithLabelValues(fam.Title()).Observe(took.Seconds())
}

// Disturbed counts a foreign change of our kernel objects.
func (m *Metrics) Disturbed(fam policy.Family) { m.disturbed.WithLabelValues(fam.Title()).Inc() }

// Register has /metrics tell what c collects too.
func (m *Metrics) Register(c prometheus.Collector) { m.registry.MustRegister(c) }

// A collector is a prometheus.Collector of some metrics, which a function has each time that they are asked for.
type collector struct {
	descs   []*prometheus.Desc
	collect func(chan<- prometheus.Metric)
}

// Describe implements prometheus.Collector.
func (c collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) { c.collect(ch) }

// Handler answers /metrics.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4})
}

func seconds(t time.Time) float64 { return float64(t.UnixNano()) / 1e9 }

func histogram(name, help string, buckets []float64) *prometheus.HistogramVec {
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
