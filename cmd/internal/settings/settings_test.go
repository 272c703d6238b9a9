package settings

import (
	"bytes"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/source"
)

var plain = cmp.Options{
	cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
	cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
}

// Of settings that are far too large, what shows that they are is read.
func TestHugeSettingsAreReadInPart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "svcproxy.toml")
	fatal.If(t, os.WriteFile(path, []byte("# "), 0o644))
	fatal.If(t, os.Truncate(path, 1<<40))
	text, err := (&Watcher{Config: Config{ConfigDir: filepath.Dir(path)}}).contents()
	if err != nil || len(text) != configs.MaxSize+1 {
		t.Errorf("read %d bytes, %v; want one more than are accepted", len(text), err)
	}
	if _, faults := configs.Parse(path, text); len(faults) != 1 || !strings.Contains(faults[0].Msg, "more than") {
		t.Errorf("faults %v; want one about the size", faults)
	}
}

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
	want.Guard, want.History = configs.Guard{Removals: 30, Apply: "manual"}, configs.History{Keep: 3}
	want.BGP = configs.BGP{AS: 64512, RouterID: netip.MustParseAddr("192.0.2.1"), Peers: []configs.BGPPeer{{AS: 64500}}}
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
		{"status_address", func(s *configs.Settings) { s.StatusAddress = ":2" }},
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

// Settings that changed again before they were read are not those that were found to be whole: the next looks read them.
func TestSettingsChangeWhileRead(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "svcproxy.toml")
	put := func(text string) {
		fatal.If(t, os.WriteFile(path, []byte(text), 0o644))
	}
	put("mode = \"ipvs\"\n")
	w := &Watcher{Config: Config{ConfigDir: dir, StateDir: t.TempDir()}, log: slog.New(slog.DiscardHandler)}
	w.Load = func(path string) (configs.Settings, []source.Fault, error) {
		put("# truncated, to be written again")
		return configs.Load(path)
	}
	w.Changed = func(was, now configs.Settings) { t.Error("what was never whole is used") }
	w.inUse.Mode = "nftables"
	if w.Read(t.Context()); !bytes.Equal(w.text, unknown) || w.inUse.Mode != "nftables" {
		t.Errorf("taken for read: %q; in use %q", w.text, w.inUse.Mode)
	}
}
