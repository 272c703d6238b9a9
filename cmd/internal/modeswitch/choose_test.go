package modeswitch

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"svcproxy.dev/svcproxy/cmd/internal/modes"
	"svcproxy.dev/svcproxy/cmd/internal/modes/modestest"
	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// An idle backend holds nothing.
type idle struct{ modes.Backend }

func (*idle) Cleanup(context.Context) error { return nil }
func (*idle) Close() error                  { return nil }

func TestChoose(t *testing.T) {
	four := func(_ context.Context, fam policy.Family, _ modes.OpenConfig) (modes.Backend, error) {
		if fam == policy.IPv6 {
			return nil, errors.New("no ip6")
		}
		return new(idle), nil
	}
	works := modestest.Stub("iptables", modestest.Opens(new(idle)))
	tests := []struct {
		name, set      string
		available      []modes.Mode
		mode, why, err string
	}{
		{"auto takes the first", "auto", []modes.Mode{modestest.Stub("nftables", modestest.Opens(new(idle))), works}, "nftables", "nftables works", ""},
		{"auto says why not", "auto", []modes.Mode{modestest.Stub("nftables", modestest.Fails("no map")), works}, "iptables",
			"nftables mode: ipv4 is left out: no map; ipv6 is left out: no map; iptables works", ""},
		{"auto leaves no family out", "auto", []modes.Mode{modestest.Stub("nftables", four), works}, "iptables",
			"nftables: ipv6 is left out: no ip6; iptables works", ""},
		{"auto without any", "auto", []modes.Mode{modestest.Stub("nftables", modestest.Fails("no"))}, "", "",
			"no mode works on this host: nftables mode: ipv4 is left out: no; ipv6 is left out: no"},
		{"set", "nftables", []modes.Mode{modestest.Stub("nftables", four), works}, "nftables", "it is set", ""},
		{"set and impossible", "nftables", []modes.Mode{modestest.Stub("nftables", modestest.Fails("no")), works}, "", "",
			"nftables mode: ipv4 is left out: no; ipv6 is left out: no"},
		{"set and not built", "ipvs", []modes.Mode{works}, "", "",
			`mode "ipvs" is not in this build; set mode to "auto" or "iptables"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			modestest.Use(t, tt.available...)
			in, err := Choose(t.Context(), modes.OpenConfig{Settings: configs.Settings{Mode: tt.set, Families: []string{"ipv4", "ipv6"}}})
			text := ""
			if err != nil {
				text, in = err.Error(), &Active{}
			}
			if in.Name != tt.mode || in.Why != tt.why || text != tt.err {
				t.Errorf("choose = %q, why %q, error %q", in.Name, in.Why, text)
			}
		})
	}
}

// localhost_node_ports is for iptables mode, so auto takes that.
func TestChooseForLocalhostNodePorts(t *testing.T) {
	modestest.Use(t, modestest.Stub("nftables", modestest.Opens(new(idle))), modestest.Stub("iptables", modestest.Opens(new(idle))))
	in, err := Choose(t.Context(), modes.OpenConfig{Settings: configs.Settings{Mode: "auto", Families: []string{"ipv4"}, LocalhostNodePorts: true}})
	if err != nil || in.Name != "iptables" {
		t.Errorf("choose = %+v, %v, want iptables", in, err)
	}
}

func TestOpenLeavesOutAFamily(t *testing.T) {
	four := new(idle)
	m := modestest.Stub("iptables", func(_ context.Context, fam policy.Family, _ modes.OpenConfig) (modes.Backend, error) {
		if fam == policy.IPv6 {
			return nil, errors.New("no ip6tables")
		}
		return four, nil
	})
	in, err := openAll(t.Context(), m, modes.OpenConfig{Settings: configs.Settings{Families: []string{"ipv4", "ipv6"}}}, time.Hour)
	if err != nil || len(in.Backends) != 1 || in.Backends[policy.IPv4] != four {
		t.Fatalf("openAll = %+v, %v", in, err)
	}
	if diff := cmp.Diff([]string{"ipv6 is left out: no ip6tables"}, in.Missing()); diff != "" {
		t.Errorf("missing (-want +got):\n%s", diff)
	}
	_, err = openAll(t.Context(), m, modes.OpenConfig{Settings: configs.Settings{Families: []string{"ipv6"}}}, time.Hour)
	if want := "iptables mode: ipv6 is left out: no ip6tables"; err == nil || err.Error() != want {
		t.Errorf("open with no family: %v, want %s", err, want)
	}
}

// A bad backend for cleaning up.
type stubborn struct{ idle }

func (*stubborn) Cleanup(context.Context) error { return errors.New("busy") }

func TestCleanupGoesOn(t *testing.T) {
	modestest.Use(t, modestest.Stub("ipvs", modestest.Opens(new(idle))), modestest.Stub("iptables", modestest.Opens(new(stubborn))))
	want := "cleaning up iptables mode, ipv4: busy\ncleaning up iptables mode, ipv6: busy"
	if err := Cleanup(t.Context(), t.TempDir(), t.Output()); err == nil || err.Error() != want {
		t.Errorf("Cleanup: %v\n   want: %s", err, want)
	}
}

// A mode that is still open and that settings name now is in use for that reason.
func TestOpenModeIsNamed(t *testing.T) {
	chosen := &Active{Mode: modestest.Stub("nftables", nil), Why: "nftables works"}
	am, err := new(Switch).openWanted(t.Context(), []*Active{chosen}, configs.Settings{Mode: "nftables"})
	if err != nil || am != chosen || am.Why != "it is set" {
		t.Errorf("opened %+v, error %v", am, err)
	}
}
