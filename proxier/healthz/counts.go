package healthz

import (
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/report"
	"svcproxy.dev/svcproxy/source"
)

// Counts say how many there are of what.
type Counts struct {
	Loop  report.Counts
	Files map[source.FileState]int

	Faults, Warnings int
	SettingsFaults   int // of Faults, those of svcproxy.toml
	Held             int // changes that the guard holds back

	Drains      map[string]int       // that svcproxy drain has set, by what they drain
	OldestDrain map[string]time.Time // when the oldest of them began; not there: there is none

	Flows, MaxFlows int // connections that the kernel tracks, and how many it can; 0: not known

	DroppedNew *uint64 // packets that would have begun connections whose entries it could not insert; nil: not known
}

// What can be drained: DrainedEndpoints: an address, in one service or all; DrainedNode: this host.
const (
	DrainedEndpoints = "endpoint"
	DrainedNode      = "node"
)

// accepted reports whether all files are used as they stand.
func (c *Counts) accepted() bool {
	return c.Files[source.Stale]+c.Files[source.Refused]+c.SettingsFaults == 0
}

// WatchCounts has counts asked for each time that metrics are.
func (m *Metrics) WatchCounts(counts func() Counts, families ...policy.Family) {
	m.registry.MustRegister(counted{counts, families})
}

// counted is a prometheus.Collector of Counts: all of one answer are of one moment.
type counted struct {
	counts   func() Counts
	families []policy.Family
}

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("svcproxy_"+name, help, labels, nil)
}

var (
	reloadDesc    = desc("config_last_reload_successful", "1 while all service files and svcproxy.toml are used as they stand.")
	filesDesc     = desc("files", "Service files, by whether they are used as they stand.", "state")
	faultsDesc    = desc("faults", "Faults of files, of svcproxy.toml and of objects of an API.")
	warningsDesc  = desc("warnings", "Warnings that svcproxy status lists.")
	heldDesc      = desc("held_changes", "Changes that are held back until they are confirmed.")
	servicesDesc  = desc("services", "Services, by what becomes of new connections to the worst of their addresses.", "action")
	endpointsDesc = desc("endpoints", "Endpoints of services, by state.", "state")
	failedDesc    = desc("services_all_failed", "Services no endpoint of which passes its health check, by what becomes of connections to them.", "all_failed")
	drainsDesc    = desc("drains", "Drains that svcproxy drain has set, by what is drained.", "kind")
	oldestDesc    = desc("drains_oldest_timestamp_seconds", "When the oldest of these drains began, by what is drained; 0: there is none.", "kind")
	noLocalDesc   = desc("sync_proxy_rules_no_local_endpoints_total", "Services of policy local that have endpoints, but none on this node.", "traffic_policy", "ip_family")
	flowsDesc     = desc("conntrack_entries", "Connections that the kernel tracks in this network namespace.")
	maxFlowsDesc  = desc("conntrack_entries_limit", "How many connections the kernel can track.")

	droppedDesc = desc("conntrack_insert_failed_total", "Packets dropped because the connection that they would have begun got no entry, as a rule for want of a free source port.")

	seenDescs = [2]*prometheus.Desc{
		desc("sync_proxy_rules_service_changes_total", "Changes of services, but of their endpoints."),
		desc("sync_proxy_rules_endpoint_changes_total", "Changes of the endpoints of services."),
	}
	pendingDescs = [2]*prometheus.Desc{
		desc("sync_proxy_rules_service_changes_pending", "Changes of services that are not in the kernel yet."),
		desc("sync_proxy_rules_endpoint_changes_pending", "Changes of endpoints that are not in the kernel yet."),
	}
)

// Describe implements prometheus.Collector.
func (c counted) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, ch) }

// Collect implements prometheus.Collector.
func (c counted) Collect(ch chan<- prometheus.Metric) {
	n := c.counts()
	tell := func(d *prometheus.Desc, value int, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(value), labels...)
	}
	tell(reloadDesc, one(n.accepted()))
	for _, s := range source.FileStates() {
		tell(filesDesc, n.Files[s], word(string(s)))
	}
	tell(faultsDesc, n.Faults)
	tell(warningsDesc, n.Warnings)
	tell(heldDesc, n.Held)
	for _, a := range report.ServiceActions() {
		tell(servicesDesc, n.Loop.Services[a], word(a))
	}
	for _, s := range policy.EndpointStates() {
		tell(endpointsDesc, n.Loop.Endpoints[s], word(s))
	}
	for _, a := range report.AllFailedSettings() {
		tell(failedDesc, n.Loop.AllFailed[a], a)
	}
	for _, kind := range []string{DrainedEndpoints, DrainedNode} {
		tell(drainsDesc, n.Drains[kind], kind)
		oldest := 0
		if began := n.OldestDrain[kind]; !began.IsZero() {
			oldest = int(began.Unix())
		}
		tell(oldestDesc, oldest, kind)
	}
	for _, fam := range c.families {
		tell(noLocalDesc, n.Loop.NoLocal[fam].Internal, "internal", fam.Title())
		tell(noLocalDesc, n.Loop.NoLocal[fam].External, "external", fam.Title())
	}
	if n.MaxFlows > 0 {
		tell(flowsDesc, n.Flows)
		tell(maxFlowsDesc, n.MaxFlows)
	}
	if n.DroppedNew != nil {
		ch <- prometheus.MustNewConstMetric(droppedDesc, prometheus.CounterValue, float64(*n.DroppedNew))
	}
	for i, both := range [2][2]int{{n.Loop.Seen.Services, n.Loop.Pending.Services}, {n.Loop.Seen.Endpoints, n.Loop.Pending.Endpoints}} {
		ch <- prometheus.MustNewConstMetric(seenDescs[i], prometheus.CounterValue, float64(both[0]))
		tell(pendingDescs[i], both[1])
	}
}

// one returns 1 for what is so, else 0.
func one(is bool) int {
	if is {
		return 1
	}
	return 0
}

// word returns a word of status as a label value.
func word(s string) string { return strings.ReplaceAll(s, " ", "_") }
