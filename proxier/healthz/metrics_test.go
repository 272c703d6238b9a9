package healthz

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"svcproxy.dev/svcproxy/proxier"
)

func TestMetrics(t *testing.T) {
	m := NewMetrics("v1")
	start := time.Unix(1000, 0)
	m.Synced(proxier.SyncResult{
		Family: proxier.IPv4, Full: true, Queued: start.Add(-time.Second), Start: start,
		Duration: 2 * time.Second, Services: 3, Endpoints: 7,
	})
	m.Synced(proxier.SyncResult{
		Family: proxier.IPv4, Start: start.Add(time.Minute), Duration: time.Second,
		Services: 4, Endpoints: 8, Err: errors.New("no"),
	})
	m.FlowsDeleted(proxier.IPv4, 2)
	const want = `
# HELP svcproxy_conntrack_deleted_entries_total UDP flows removed because their endpoint or service was gone.
# TYPE svcproxy_conntrack_deleted_entries_total counter
svcproxy_conntrack_deleted_entries_total{ip_family="ipv4"} 2
# HELP svcproxy_endpoints Endpoints of all services in use.
# TYPE svcproxy_endpoints gauge
svcproxy_endpoints{ip_family="ipv4"} 8
# HELP svcproxy_services Services in use.
# TYPE svcproxy_services gauge
svcproxy_services{ip_family="ipv4"} 4
# HELP svcproxy_sync_proxy_rules_failures_total Syncs that failed.
# TYPE svcproxy_sync_proxy_rules_failures_total counter
svcproxy_sync_proxy_rules_failures_total{ip_family="ipv4"} 1
# HELP svcproxy_sync_proxy_rules_last_queued_timestamp_seconds When the oldest change of the last sync that had any arrived.
# TYPE svcproxy_sync_proxy_rules_last_queued_timestamp_seconds gauge
svcproxy_sync_proxy_rules_last_queued_timestamp_seconds{ip_family="ipv4"} 999
# HELP svcproxy_sync_proxy_rules_last_timestamp_seconds When a sync last succeeded.
# TYPE svcproxy_sync_proxy_rules_last_timestamp_seconds gauge
svcproxy_sync_proxy_rules_last_timestamp_seconds{ip_family="ipv4"} 1002
`
	err := testutil.GatherAndCompare(m.registry, strings.NewReader(want),
		"svcproxy_conntrack_deleted_entries_total", "svcproxy_endpoints", "svcproxy_services",
		"svcproxy_sync_proxy_rules_failures_total", "svcproxy_sync_proxy_rules_last_queued_timestamp_seconds",
		"svcproxy_sync_proxy_rules_last_timestamp_seconds")
	if err != nil {
		t.Error(err)
	}
	for name, want := range map[string]sample{
		"sync_proxy_rules_duration_seconds":         {3, 2},
		"sync_full_proxy_rules_duration_seconds":    {2, 1},
		"sync_partial_proxy_rules_duration_seconds": {1, 1},
		"network_programming_duration_seconds":      {3, 1},
	} {
		if got := gathered(t, m, "svcproxy_"+name); got != want {
			t.Errorf("%s = %+v, want %+v", name, got, want)
		}
	}
}

// Every trouble has a series from the start, and is asked about each time.
func TestTroubles(t *testing.T) {
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
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			h := f.GetMetric()[0].GetHistogram()
			return sample{h.GetSampleSum(), h.GetSampleCount()}
		}
	}
	t.Fatalf("no metric %s", name)
	return sample{}
}
