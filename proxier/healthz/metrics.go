package healthz

import (
	"net/http"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"svcproxy.dev/svcproxy/proxier/loop"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// Metrics counts what the Loop does. What kube-proxy has too has its name after our
// prefix, its labels and its buckets; docs/metrics.md lists all.
type Metrics struct {
	registry *prometheus.Registry
	follow   []func(fam string) // has all series of a family, of each metric by family alone

	duration               *prometheus.HistogramVec
	byFull                 map[bool]*prometheus.HistogramVec // of full syncs, and of partial ones
	programming, flowLooks *prometheus.HistogramVec
	last, lastQueued       *prometheus.GaugeVec
	failures               map[string]*prometheus.CounterVec // by cause; anyCause: of all
	flows                  *prometheus.CounterVec
	unserved               *prometheus.GaugeVec
	answers                map[string]*prometheus.CounterVec // by path
	disturbed, repairs     *prometheus.CounterVec
	notified               map[bool]prometheus.Counter // by whether the call succeeded
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
	anyCause      = ""
)

// NewMetrics returns metrics in a registry of their own.
func NewMetrics(version string) *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry()}
	m.Register(collectors.NewGoCollector())
	m.Register(collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	made := promauto.With(m.registry)
	made.NewGauge(prometheus.GaugeOpts{
		Namespace: "svcproxy", Name: "build_info", Help: "Always 1.", ConstLabels: prometheus.Labels{"version": version},
	}).Set(1)
	m.reloaded = made.NewGauge(prometheus.GaugeOpts{
		Namespace: "svcproxy", Name: "config_last_reload_success_timestamp_seconds", Help: "When service files or svcproxy.toml were last read and taken over.",
	})
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return made.NewCounterVec(prometheus.CounterOpts{Namespace: "svcproxy", Name: name, Help: help}, labels)
	}
	m.answers = map[string]*prometheus.CounterVec{
		"healthz": counter("proxy_healthz_total", "Answers of /healthz.", "code"),
		"livez":   counter("proxy_livez_total", "Answers of /livez.", "code"),
	}
	for _, code := range []string{"200", "503"} {
		for _, c := range m.answers {
			c.WithLabelValues(code)
		}
	}
	notified := counter("notify_calls_total", "Calls of what [notify] names, by how they ended.", "outcome")
	m.notified = map[bool]prometheus.Counter{true: notified.WithLabelValues("ok"), false: notified.WithLabelValues("failed")}
	m.repairs = counter("kernel_repairs_total", "Syncs that repaired what the kernel held, by why they did.", "ip_family", "cause")

	histogram := func(name, help string, buckets []float64) *prometheus.HistogramVec {
		v := made.NewHistogramVec(prometheus.HistogramOpts{Namespace: "svcproxy", Name: name, Help: help, Buckets: buckets}, []string{"ip_family"})
		m.follow = append(m.follow, func(fam string) { v.WithLabelValues(fam) })
		return v
	}
	gauge := func(name, help string) *prometheus.GaugeVec {
		v := made.NewGaugeVec(prometheus.GaugeOpts{Namespace: "svcproxy", Name: name, Help: help}, []string{"ip_family"})
		m.follow = append(m.follow, func(fam string) { v.WithLabelValues(fam) })
		return v
	}
	count := func(name, help string) *prometheus.CounterVec {
		v := counter(name, help, "ip_family")
		m.follow = append(m.follow, func(fam string) { v.WithLabelValues(fam) })
		return v
	}
	m.duration = histogram("sync_proxy_rules_duration_seconds", "Time of a sync, failed ones too.", buckets)
	m.byFull = map[bool]*prometheus.HistogramVec{
		true:  histogram("sync_full_proxy_rules_duration_seconds", "Time of a sync that compared everything with the kernel.", buckets),
		false: histogram("sync_partial_proxy_rules_duration_seconds", "Time of a sync that wrote only what had changed.", buckets),
	}
	m.programming = histogram("network_programming_duration_seconds", "Time from a change of a file, or the trigger time that the API tells, until the kernel held it.", programmingBuckets)
	m.flowLooks = histogram("conntrack_reconciler_sync_duration_seconds", "Time of a look for stale UDP flows.", buckets)
	m.last = gauge("sync_proxy_rules_last_timestamp_seconds", "When a sync last succeeded.")
	m.lastQueued = gauge("sync_proxy_rules_last_queued_timestamp_seconds", "When there last came something to sync.")
	m.failures = map[string]*prometheus.CounterVec{
		anyCause:      count("sync_proxy_rules_failures_total", "Syncs that failed, in any mode."),
		RestoreFailed: count("sync_proxy_rules_iptables_restore_failures_total", "Syncs of iptables or ipvs mode that failed because iptables-restore did."),
		partialFailed: count("sync_proxy_rules_iptables_partial_restore_failures_total", "Syncs of iptables mode that failed and wrote only what had changed."),
		NftablesSync:  count("sync_proxy_rules_nftables_sync_failures_total", "Syncs of nftables mode that failed."),
	}
	m.flows = count("conntrack_reconciler_deleted_entries_total", "UDP flows removed because their endpoint or service was gone.")
	m.unserved = gauge("virtual_servers_unserved", "Virtual servers of services that the kernel lacks something for or another program has, in ipvs mode.")
	m.disturbed = count("kernel_changes_by_others_total", "Changes of our kernel objects by other programs, as far as the kernel tells.")
	return m
}

// Follow has all series of a family from the start: a rate sees the first failure only of
// a counter that was 0 before it.
func (m *Metrics) Follow(families ...policy.Family) {
	for _, f := range families {
		for _, follow := range m.follow {
			follow(f.Title())
		}
		for _, c := range loop.RepairCauses() {
			m.repairs.WithLabelValues(f.Title(), string(c))
		}
	}
}

// Synced counts one sync.
func (m *Metrics) Synced(r loop.SyncResult) {
	fam, secs := r.Family.Title(), r.Duration.Seconds()
	m.duration.WithLabelValues(fam).Observe(secs)
	m.byFull[r.Full].WithLabelValues(fam).Observe(secs)
	if r.Err != nil {
		m.failures[anyCause].WithLabelValues(fam).Inc()
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
	if c := m.failures[why]; c != nil && why != anyCause {
		c.WithLabelValues(fam).Inc()
	}
	if why == RestoreFailed && !r.Full {
		m.failures[partialFailed].WithLabelValues(fam).Inc()
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

// Notified counts a call of what [notify] names.
func (m *Metrics) Notified(ok bool) { m.notified[ok].Inc() }

// Register has /metrics tell what c collects too.
func (m *Metrics) Register(c prometheus.Collector) { m.registry.MustRegister(c) }

// A collector has what it knows asked for each time that metrics are. The registry checks what it sends, not what it could.
type collector func(chan<- prometheus.Metric)

// Describe implements prometheus.Collector.
func (collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) { c(ch) }

// send sends a metric. labels are their names, each followed by its value.
func send(ch chan<- prometheus.Metric, kind prometheus.ValueType, value float64, name, help string, labels ...string) {
	var names, values []string
	for pair := range slices.Chunk(labels, 2) {
		names, values = append(names, pair[0]), append(values, pair[1])
	}
	ch <- prometheus.MustNewConstMetric(prometheus.NewDesc("svcproxy_"+name, help, names, nil), kind, value, values...)
}

// number sends how many there are of something now.
func number(ch chan<- prometheus.Metric, n int, name, help string, labels ...string) {
	send(ch, prometheus.GaugeValue, float64(n), name, help, labels...)
}

// Handler answers /metrics.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4})
}

func seconds(t time.Time) float64 { return float64(t.UnixNano()) / 1e9 }
