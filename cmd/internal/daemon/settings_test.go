package daemon

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"svcproxy/configs"
)

var plain = cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })

// What can change at run time does, and is not named.
func TestAtRunTime(t *testing.T) {
	fixed, want := configs.Default(), configs.Default()
	want.Mode = "iptables"
	want.Zone, want.Masquerade, want.LocalhostNodePorts = "z", "all", true
	want.LocalCIDRs = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	want.LocalInterfaces = []string{"cni0"}
	want.ServiceCIDRs = want.LocalCIDRs
	want.NodePortAddresses = []string{"all"}
	want.Sync = configs.Sync{MinInterval: time.Second, ResyncInterval: time.Minute}
	want.Log.Level = "debug"
	now, restart := atRunTime(fixed, want)
	if diff := cmp.Diff(want, now, plain); diff != "" || restart != nil {
		t.Errorf("needs a restart %q; in use (-want +got):\n%s", restart, diff)
	}
}

// All else stays as it was at start, and is named.
func TestNeedsRestart(t *testing.T) {
	tests := []struct {
		name   string
		change func(*configs.Settings)
	}{
		{"sources", func(s *configs.Settings) { s.Sources = nil }},
		{"node_name", func(s *configs.Settings) { s.NodeName = "other" }},
		{"families", func(s *configs.Settings) { s.Families = s.Families[:1] }},
		{"masquerade_bit", func(s *configs.Settings) { s.MasqueradeBit++ }},
		{"http_address", func(s *configs.Settings) { s.HTTPAddress = "" }},
		{"metrics_address", func(s *configs.Settings) { s.MetricsAddress = ":1" }},
		{"ipvs", func(s *configs.Settings) { s.IPVS.Scheduler = "rr" }},
		{"kubernetes", func(s *configs.Settings) { s.Kubernetes.ProxyName = "x" }},
		{"limits", func(s *configs.Settings) { s.Limits.Services = 1 }},
		{"log.format", func(s *configs.Settings) { s.Log.Format = "json" }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			fixed, want := configs.Default(), configs.Default()
			tt.change(&want)
			now, restart := atRunTime(fixed, want)
			if diff := cmp.Diff(fixed, now, plain); diff != "" {
				t.Errorf("in use (-as at start +now):\n%s", diff)
			}
			if diff := cmp.Diff([]string{tt.name}, restart); diff != "" {
				t.Errorf("needs a restart (-want +got):\n%s", diff)
			}
		})
	}
}
