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
	Loop   report.Counts
	Labels []string // keys of the labels that metrics of single services have

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

// WatchCounts has counts asked for each time that metrics are: all of one answer are of one moment.
func (m *Metrics) WatchCounts(counts func() Counts, families ...policy.Family) {
	var names namer
	m.Register(collector(func(ch chan<- prometheus.Metric) {
		n := counts()
		n.collect(ch)
		names.collect(ch, &n.Loop.Named, n.Labels)
		for _, fam := range families {
			const help = "Services of policy local that have endpoints, but none on this node."
			number(ch, n.Loop.NoLocal[fam].Internal, "sync_proxy_rules_no_local_endpoints_total", help, "traffic_policy", "internal", "ip_family", fam.Title())
			number(ch, n.Loop.NoLocal[fam].External, "sync_proxy_rules_no_local_endpoints_total", help, "traffic_policy", "external", "ip_family", fam.Title())
		}
	}))
}

func (c *Counts) collect(ch chan<- prometheus.Metric) {
	number(ch, one(c.accepted()), "config_last_reload_successful", "1 while all service files and svcproxy.toml are used as they stand.")
	for _, s := range source.FileStates() {
		number(ch, c.Files[s], "files", "Service files, by whether they are used as they stand.", "state", word(string(s)))
	}
	number(ch, c.Faults, "faults", "Faults of files, of svcproxy.toml and of objects of an API.")
	number(ch, c.Warnings, "warnings", "Warnings that svcproxy status lists.")
	number(ch, c.Held, "held_changes", "Changes that are held back until they are confirmed.")
	for _, a := range report.ServiceActions() {
		number(ch, c.Loop.Services[a], "services", "Services, by what becomes of new connections to the worst of their addresses.", "action", word(a))
	}
	for _, s := range policy.EndpointStates() {
		number(ch, c.Loop.Endpoints[s], "endpoints", "Endpoints of services, by state.", "state", word(s))
	}
	for _, a := range report.AllFailedSettings() {
		number(ch, c.Loop.AllFailed[a], "services_all_failed",
			"Services no endpoint of which passes its health check, by what becomes of connections to them.", "all_failed", a)
	}
	for _, kind := range []string{DrainedEndpoints, DrainedNode} {
		number(ch, c.Drains[kind], "drains", "Drains that svcproxy drain has set, by what is drained.", "kind", kind)
		oldest := 0
		if began := c.OldestDrain[kind]; !began.IsZero() {
			oldest = int(began.Unix())
		}
		number(ch, oldest, "drains_oldest_timestamp_seconds", "When the oldest of these drains began, by what is drained; 0: there is none.", "kind", kind)
	}
	if c.MaxFlows > 0 {
		number(ch, c.Flows, "conntrack_entries", "Connections that the kernel tracks in this network namespace.")
		number(ch, c.MaxFlows, "conntrack_entries_limit", "How many connections the kernel can track.")
	}
	if c.DroppedNew != nil {
		send(ch, prometheus.CounterValue, float64(*c.DroppedNew), "conntrack_insert_failed_total",
			"Packets dropped because the connection that they would have begun got no entry, as a rule for want of a free source port.")
	}
	send(ch, prometheus.CounterValue, float64(c.Loop.Seen.Services), "sync_proxy_rules_service_changes_total", "Changes of services, but of their endpoints.")
	send(ch, prometheus.CounterValue, float64(c.Loop.Seen.Endpoints), "sync_proxy_rules_endpoint_changes_total", "Changes of the endpoints of services.")
	number(ch, c.Loop.Pending.Services, "sync_proxy_rules_service_changes_pending", "Changes of services that are not in the kernel yet.")
	number(ch, c.Loop.Pending.Endpoints, "sync_proxy_rules_endpoint_changes_pending", "Changes of endpoints that are not in the kernel yet.")
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
