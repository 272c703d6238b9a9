package healthz

import (
	"errors"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/proxier/healthcheck"
	"svcproxy.dev/svcproxy/proxier/loop"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/report"
	"svcproxy.dev/svcproxy/source"
)

func TestMetrics(t *testing.T) {
	m := NewMetrics("v1")
	m.Follow(policy.IPv4)
	start := time.Unix(1000, 0)
	m.Queued(policy.IPv4, start.Add(-time.Second))
	m.Synced(loop.SyncResult{
		Family: policy.IPv4, Full: true, Start: start, Duration: 2 * time.Second,
		Triggers: []time.Time{start.Add(-time.Second), start.Add(-time.Minute), start.Add(time.Hour)},
		Repairs:  []loop.RepairCause{loop.Foreign, loop.Difference},
	})
	failed := loop.SyncResult{
		Family: policy.IPv4, Start: start.Add(time.Minute), Duration: time.Second, Err: errors.New("no"),
		Triggers: []time.Time{start}, Repairs: []loop.RepairCause{loop.Foreign},
	}
	for _, why := range []string{RestoreFailed, NftablesSync, ""} {
		m.Synced(failed)
		m.SyncFailed(failed, why)
	}
	failed.Full = true
	m.SyncFailed(failed, RestoreFailed)
	m.FlowsLooked(policy.IPv4, 2, time.Second)
	m.Reloaded(start)
	m.Notified(false)
	m.WatchCounts(func() Counts {
		return Counts{
			Loop: report.Counts{
				Services: map[string]int{"balance": 3, "in part": 1}, Endpoints: map[string]int{"ready": 5, "weight 0": 2, "slow start": 1},
				AllFailed: map[string]int{"use_all": 4},
				NoLocal:   map[policy.Family]report.NoLocal{policy.IPv4: {Internal: 1, External: 2}},
				Seen:      report.ChangeCounts{Services: 6, Endpoints: 7}, Pending: report.ChangeCounts{Services: 1, Endpoints: 2},
			},
			Files: map[source.FileState]int{source.Accepted: 2, source.Stale: 1, source.Held: 3, source.RolledBack: 4}, Faults: 3, Warnings: 4, Held: 5,
			Drains: map[string]int{DrainedEndpoints: 3}, OldestDrain: map[string]time.Time{DrainedEndpoints: time.Unix(900, 0)}, Flows: 10, MaxFlows: 100, DroppedNew: new(uint64(20)),
		}
	}, policy.IPv4)
	const want = `
svcproxy_config_last_reload_success_timestamp_seconds 1000
svcproxy_config_last_reload_successful 0
svcproxy_conntrack_entries 10
svcproxy_conntrack_entries_limit 100
svcproxy_conntrack_insert_failed_total 20
svcproxy_conntrack_reconciler_deleted_entries_total{ip_family="IPv4"} 2
svcproxy_drains{kind="endpoint"} 3
svcproxy_drains{kind="node"} 0
svcproxy_drains_oldest_timestamp_seconds{kind="endpoint"} 900
svcproxy_drains_oldest_timestamp_seconds{kind="node"} 0
svcproxy_endpoints{state="backup"} 0
svcproxy_endpoints{state="checking"} 0
svcproxy_endpoints{state="disabled"} 0
svcproxy_endpoints{state="down"} 0
svcproxy_endpoints{state="draining"} 0
svcproxy_endpoints{state="not_ready"} 0
svcproxy_endpoints{state="ready"} 5
svcproxy_endpoints{state="slow_start"} 1
svcproxy_endpoints{state="terminating"} 0
svcproxy_endpoints{state="up"} 0
svcproxy_endpoints{state="weight_0"} 2
svcproxy_faults 3
svcproxy_files{state="accepted"} 2
svcproxy_files{state="held"} 3
svcproxy_files{state="refused"} 0
svcproxy_files{state="rolled_back"} 4
svcproxy_files{state="stale"} 1
svcproxy_held_changes 5
svcproxy_kernel_changes_by_others_total{ip_family="IPv4"} 0
svcproxy_kernel_repairs_total{cause="difference",ip_family="IPv4"} 1
svcproxy_kernel_repairs_total{cause="failed_sync",ip_family="IPv4"} 0
svcproxy_kernel_repairs_total{cause="foreign",ip_family="IPv4"} 1
svcproxy_kernel_repairs_total{cause="unreadable",ip_family="IPv4"} 0
svcproxy_notify_calls_total{outcome="failed"} 1
svcproxy_notify_calls_total{outcome="ok"} 0
svcproxy_proxy_healthz_total{code="200"} 0
svcproxy_proxy_healthz_total{code="503"} 0
svcproxy_proxy_livez_total{code="200"} 0
svcproxy_proxy_livez_total{code="503"} 0
svcproxy_service_endpoints_left_out 0
svcproxy_service_problem{namespace="",problem="all_failed",service=""} 0
svcproxy_service_problem{namespace="",problem="drop",service=""} 0
svcproxy_service_problem{namespace="",problem="in_part",service=""} 0
svcproxy_service_problem{namespace="",problem="reject",service=""} 0
svcproxy_service_problem{namespace="",problem="unserved",service=""} 0
svcproxy_services{action="balance"} 3
svcproxy_services{action="disabled"} 0
svcproxy_services{action="drop"} 0
svcproxy_services{action="in_part"} 1
svcproxy_services{action="none"} 0
svcproxy_services{action="pending"} 0
svcproxy_services{action="reject"} 0
svcproxy_services{action="unserved"} 0
svcproxy_services_all_failed{all_failed="refuse"} 0
svcproxy_services_all_failed{all_failed="use_all"} 4
svcproxy_sync_proxy_rules_endpoint_changes_pending 2
svcproxy_sync_proxy_rules_endpoint_changes_total 7
svcproxy_sync_proxy_rules_failures_total{ip_family="IPv4"} 3
svcproxy_sync_proxy_rules_iptables_partial_restore_failures_total{ip_family="IPv4"} 1
svcproxy_sync_proxy_rules_iptables_restore_failures_total{ip_family="IPv4"} 2
svcproxy_sync_proxy_rules_last_queued_timestamp_seconds{ip_family="IPv4"} 999
svcproxy_sync_proxy_rules_last_timestamp_seconds{ip_family="IPv4"} 1002
svcproxy_sync_proxy_rules_nftables_sync_failures_total{ip_family="IPv4"} 1
svcproxy_sync_proxy_rules_no_local_endpoints_total{ip_family="IPv4",traffic_policy="external"} 2
svcproxy_sync_proxy_rules_no_local_endpoints_total{ip_family="IPv4",traffic_policy="internal"} 1
svcproxy_sync_proxy_rules_service_changes_pending 1
svcproxy_sync_proxy_rules_service_changes_total 6
svcproxy_virtual_servers_unserved{ip_family="IPv4"} 0
svcproxy_warnings 4
`
	if diff := cmp.Diff(strings.TrimPrefix(want, "\n"), lines(t, m)); diff != "" {
		t.Errorf("metrics (-want +got):\n%s", diff)
	}
	for name, want := range map[string]sample{
		"sync_proxy_rules_duration_seconds":          {5, 4},
		"sync_full_proxy_rules_duration_seconds":     {2, 1},
		"sync_partial_proxy_rules_duration_seconds":  {3, 3},
		"network_programming_duration_seconds":       {3 + 62 + 0, 3},
		"conntrack_reconciler_sync_duration_seconds": {1, 1},
	} {
		if got := gathered(t, m, "svcproxy_"+name); got != want {
			t.Errorf("%s = %+v, want %+v", name, got, want)
		}
	}
}

// lines returns the plain numbers of our own, but build_info, as a scrape has them.
func lines(t *testing.T, m *Metrics) string {
	t.Helper()
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	var out strings.Builder
	for line := range strings.Lines(w.Body.String()) {
		if strings.HasPrefix(line, "svcproxy_") && !strings.Contains(line, "build_info") && !strings.Contains(line, "_duration_seconds_") {
			out.WriteString(line)
		}
	}
	return out.String()
}

// Whatever is wrong with files is told by the metric that alerts know from Prometheus.
func TestReloadSuccessful(t *testing.T) {
	tests := []struct {
		name string
		in   Counts
		want bool
	}{
		{"no files", Counts{}, true},
		{"accepted", Counts{Files: map[source.FileState]int{source.Accepted: 3}, Warnings: 2}, true},
		{"stale", Counts{Files: map[source.FileState]int{source.Accepted: 3, source.Stale: 1}}, false},
		{"refused", Counts{Files: map[source.FileState]int{source.Refused: 1}}, false},
		{"settings", Counts{SettingsFaults: 1}, false},
	}
	for _, tt := range tests {
		if got := tt.in.accepted(); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}

// kubeProxy are the metrics of kube-proxy 1.36 for Linux, with their labels; which of
// them svcproxy has not, docs/metrics.md says why.
var kubeProxy = map[string][]string{
	"conntrack_reconciler_deleted_entries_total":               {"ip_family"},
	"conntrack_reconciler_sync_duration_seconds":               {"ip_family"},
	"iptables_ct_state_invalid_dropped_packets_total":          nil,
	"iptables_localhost_nodeports_accepted_packets_total":      nil,
	"network_programming_duration_seconds":                     {"ip_family"},
	"proxy_healthz_total":                                      {"code"},
	"proxy_livez_total":                                        {"code"},
	"sync_full_proxy_rules_duration_seconds":                   {"ip_family"},
	"sync_partial_proxy_rules_duration_seconds":                {"ip_family"},
	"sync_proxy_rules_duration_seconds":                        {"ip_family"},
	"sync_proxy_rules_endpoint_changes_pending":                nil,
	"sync_proxy_rules_endpoint_changes_total":                  nil,
	"sync_proxy_rules_iptables_last":                           {"ip_family", "table"},
	"sync_proxy_rules_iptables_partial_restore_failures_total": {"ip_family"},
	"sync_proxy_rules_iptables_restore_failures_total":         {"ip_family"},
	"sync_proxy_rules_iptables_total":                          {"ip_family", "table"},
	"sync_proxy_rules_last_queued_timestamp_seconds":           {"ip_family"},
	"sync_proxy_rules_last_timestamp_seconds":                  {"ip_family"},
	"sync_proxy_rules_nftables_cleanup_failures_total":         {"ip_family"},
	"sync_proxy_rules_nftables_sync_failures_total":            {"ip_family"},
	"sync_proxy_rules_no_local_endpoints_total":                {"ip_family", "traffic_policy"},
	"sync_proxy_rules_service_changes_pending":                 nil,
	"sync_proxy_rules_service_changes_total":                   nil,
}

// kubeProxyOnly are those that mean nothing here.
var kubeProxyOnly = map[string]bool{
	"iptables_ct_state_invalid_dropped_packets_total":     true,
	"iptables_localhost_nodeports_accepted_packets_total": true,
	"sync_proxy_rules_iptables_last":                      true,
	"sync_proxy_rules_iptables_total":                     true,
	"sync_proxy_rules_nftables_cleanup_failures_total":    true,
}

// A dashboard for kube-proxy works with the prefix exchanged.
func TestMetricsOfKubeProxy(t *testing.T) {
	have := all(t)
	for name, labels := range kubeProxy {
		got, has := have["svcproxy_"+name]
		if has == kubeProxyOnly[name] {
			t.Errorf("%s: there is %v, which is not what this test says", name, has)
		}
		if has && !slices.Equal(got, labels) {
			t.Errorf("%s has labels %q, want %q", name, got, labels)
		}
	}
	if n := len(programmingBuckets); n != 81 || programmingBuckets[0] != 0 || programmingBuckets[61] != 59 || programmingBuckets[62] != 60 || programmingBuckets[80] != 300 {
		t.Errorf("%d buckets: %v", n, programmingBuckets)
	}
	if n := len(buckets); n != 15 || buckets[0] != 0.001 || buckets[14] != 16.384 {
		t.Errorf("%d buckets: %v", n, buckets)
	}
}

// all returns the names of all metrics of our own, with their labels.
func all(t *testing.T) map[string][]string {
	t.Helper()
	m := NewMetrics("v1")
	m.Follow(policy.IPv4)
	m.WatchCounts(func() Counts {
		named := report.Named{Services: []report.ServiceCounts{{Service: &source.Service{}}}}
		return Counts{Loop: report.Counts{Named: named}, MaxFlows: 1, DroppedNew: new(uint64)}
	}, policy.IPv4)
	m.Watch("kubernetes", func() source.Status { return source.Status{Connection: &source.Connection{}} })
	m.WatchProblems("file", func() map[string]bool { return map[string]bool{"watch": true} })
	m.Register(healthcheck.NewChecker(healthcheck.Config{}).Answers())
	m.WatchStalls(func() []report.Stall {
		return []report.Stall{{Family: policy.IPv6, Work: "sync", For: "ip6tables-restore"}}
	})
	m.WatchAnnounced(func() ([]report.AnnouncedAddress, []AnnounceSession) {
		return nil, []AnnounceSession{{Peer: "192.0.2.254"}}
	})
	families, err := m.registry.Gather()
	fatal.If(t, err)
	out := map[string][]string{}
	for _, f := range families {
		if !strings.HasPrefix(f.GetName(), "svcproxy_") {
			continue
		}
		var labels []string
		for _, l := range f.GetMetric()[0].GetLabel() {
			labels = append(labels, l.GetName())
		}
		out[f.GetName()] = labels
	}
	return out
}

// docs/metrics.md has a line for each metric, with its labels, and one for each that only
// kube-proxy has.
func TestMetricsAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/metrics.md")
	fatal.If(t, err)
	described := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		if name, _, ok := strings.Cut(strings.TrimPrefix(line, "| `"), "`"); ok && strings.HasPrefix(line, "| `") && !strings.HasPrefix(name, "Svcproxy") { // no alert
			described[name] = true
		}
	}
	want := map[string]bool{}
	for name, labels := range all(t) {
		if len(labels) > 0 {
			name += "{" + strings.Join(labels, ",") + "}"
		}
		want[name] = true
	}
	for name := range kubeProxyOnly {
		want["kubeproxy_"+name] = true
	}
	for name := range want {
		if !described[name] {
			t.Errorf("docs/metrics.md has no line for %s", name)
		}
	}
	for name := range described {
		if !want[name] {
			t.Errorf("docs/metrics.md has %s, which there is not", name)
		}
	}
}

// Every trouble has a series from the start, and is asked about each time.
func TestTroublesHaveSeriesFromTheStart(t *testing.T) {
	m := NewMetrics("v1")
	has := map[string]bool{"directory": false, "watch": false}
	m.WatchProblems("file", func() map[string]bool { return has })
	for _, value := range []string{"0", "1"} {
		want := `
# HELP svcproxy_source_trouble 1 while something hinders a source, which status tells of: of files that their directory cannot be read or watched, or last good versions not be kept.
# TYPE svcproxy_source_trouble gauge
svcproxy_source_trouble{kind="directory",source="file"} 0
svcproxy_source_trouble{kind="watch",source="file"} ` + value + "\n"
		if err := testutil.GatherAndCompare(m.registry, strings.NewReader(want), "svcproxy_source_trouble"); err != nil {
			t.Error(err)
		}
		has["watch"] = true
	}
}

type sample struct {
	sum   float64 // s
	count uint64
}

// gathered returns sum and count of the only sample of a histogram.
func gathered(t *testing.T, m *Metrics, name string) sample {
	t.Helper()
	families, err := m.registry.Gather()
	fatal.If(t, err)
	for _, f := range families {
		if f.GetName() == name {
			h := f.GetMetric()[0].GetHistogram()
			return sample{h.GetSampleSum(), h.GetSampleCount()}
		}
	}
	t.Fatalf("no metric %s", name)
	return sample{}
}
