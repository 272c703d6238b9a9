package daemon

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"svcproxy.dev/svcproxy/cmd/internal/modes"
	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// with replaces the table of modes for one test.
func with(t *testing.T, list ...modes.Mode) {
	old := available
	available = list
	t.Cleanup(func() { available = old })
}

// stub returns the mode of that name with another way to open it.
func stub(name string, open func(context.Context, policy.Family, modes.OpenConfig) (modes.Backend, error)) modes.Mode {
	i := slices.IndexFunc(modes.All, func(m modes.Mode) bool { return m.Name == name })
	m := modes.All[i]
	m.Open, m.Remove, m.Remembered = open, nil, nil
	return m
}

func opens(b modes.Backend) func(context.Context, policy.Family, modes.OpenConfig) (modes.Backend, error) {
	return func(context.Context, policy.Family, modes.OpenConfig) (modes.Backend, error) { return b, nil }
}

func fails(why string) func(context.Context, policy.Family, modes.OpenConfig) (modes.Backend, error) {
	return func(context.Context, policy.Family, modes.OpenConfig) (modes.Backend, error) {
		return nil, errors.New(why)
	}
}

func TestChoose(t *testing.T) {
	four := func(_ context.Context, fam policy.Family, _ modes.OpenConfig) (modes.Backend, error) {
		if fam == policy.IPv6 {
			return nil, errors.New("no ip6")
		}
		return new(kernel), nil
	}
	works := stub("iptables", opens(new(kernel)))
	tests := []struct {
		name, set      string
		available      []modes.Mode
		mode, why, err string
	}{
		{"auto takes the first", "auto", []modes.Mode{stub("nftables", opens(new(kernel))), works}, "nftables", "nftables works", ""},
		{"auto says why not", "auto", []modes.Mode{stub("nftables", fails("no map")), works}, "iptables",
			"nftables mode: ipv4 is left out: no map; ipv6 is left out: no map; iptables works", ""},
		{"auto leaves no family out", "auto", []modes.Mode{stub("nftables", four), works}, "iptables",
			"nftables: ipv6 is left out: no ip6; iptables works", ""},
		{"auto without any", "auto", []modes.Mode{stub("nftables", fails("no"))}, "", "",
			"no mode works on this host: nftables mode: ipv4 is left out: no; ipv6 is left out: no"},
		{"set", "nftables", []modes.Mode{stub("nftables", four), works}, "nftables", "it is set", ""},
		{"set and impossible", "nftables", []modes.Mode{stub("nftables", fails("no")), works}, "", "",
			"nftables mode: ipv4 is left out: no; ipv6 is left out: no"},
		{"set and not built", "ipvs", []modes.Mode{works}, "", "",
			`mode "ipvs" is not in this build; set mode to "auto" or "iptables"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			with(t, tt.available...)
			in, err := choose(t.Context(), modes.OpenConfig{Settings: configs.Settings{Mode: tt.set, Families: []string{"ipv4", "ipv6"}}})
			text := ""
			if err != nil {
				text, in = err.Error(), &activeMode{}
			}
			if in.Name != tt.mode || in.why != tt.why || text != tt.err {
				t.Errorf("choose = %q, why %q, error %q", in.Name, in.why, text)
			}
		})
	}
}

// localhost_node_ports is for iptables mode, so auto takes that.
func TestChooseForLocalhostNodePorts(t *testing.T) {
	with(t, stub("nftables", opens(new(kernel))), stub("iptables", opens(new(kernel))))
	in, err := choose(t.Context(), modes.OpenConfig{Settings: configs.Settings{Mode: "auto", Families: []string{"ipv4"}, LocalhostNodePorts: true}})
	if err != nil || in.Name != "iptables" {
		t.Errorf("choose = %+v, %v, want iptables", in, err)
	}
}

func TestSupported(t *testing.T) {
	s := configs.Settings{Mode: "auto", Sources: []string{"file", "kubernetes"}}
	withCluster(t)
	if err := Supported(s); err != nil {
		t.Error(err)
	}
	withSources(t)
	want := `source "kubernetes" is not in this build; set sources to ["file"]`
	if err := Supported(s); err == nil || err.Error() != want {
		t.Errorf("Supported: %v\n     want: %s", err, want)
	}
	s.Sources = s.Sources[:1]
	if err := Supported(s); err != nil {
		t.Error(err)
	}
}

func TestOpenLeavesOutAFamily(t *testing.T) {
	four := new(kernel)
	m := stub("iptables", func(_ context.Context, fam policy.Family, _ modes.OpenConfig) (modes.Backend, error) {
		if fam == policy.IPv6 {
			return nil, errors.New("no ip6tables")
		}
		return four, nil
	})
	in, err := openAll(t.Context(), m, modes.OpenConfig{Settings: configs.Settings{Families: []string{"ipv4", "ipv6"}}}, time.Hour)
	if err != nil || len(in.backends) != 1 || in.backends[policy.IPv4] != four {
		t.Fatalf("openAll = %+v, %v", in, err)
	}
	if diff := cmp.Diff([]string{"ipv6 is left out: no ip6tables"}, in.missing()); diff != "" {
		t.Errorf("missing (-want +got):\n%s", diff)
	}
	_, err = openAll(t.Context(), m, modes.OpenConfig{Settings: configs.Settings{Families: []string{"ipv6"}}}, time.Hour)
	if want := "iptables mode: ipv6 is left out: no ip6tables"; err == nil || err.Error() != want {
		t.Errorf("open with no family: %v, want %s", err, want)
	}
}

// A bad backend for cleaning up.
type stubborn struct{ kernel }

func (*stubborn) Cleanup(context.Context) error { return errors.New("busy") }

func TestCleanupGoesOn(t *testing.T) {
	with(t, stub("ipvs", opens(new(kernel))), stub("iptables", opens(new(stubborn))))
	want := "cleaning up iptables mode, ipv4: busy\ncleaning up iptables mode, ipv6: busy"
	if err := Cleanup(t.Context(), t.TempDir(), t.Output()); err == nil || err.Error() != want {
		t.Errorf("Cleanup: %v\n   want: %s", err, want)
	}
}

// A family that could not be opened at start is in use when it can be.
func TestMissingFamilyComesLater(t *testing.T) {
	old := missingInterval
	missingInterval = 20 * time.Millisecond
	t.Cleanup(func() { missingInterval = old })
	var can atomic.Bool
	k := new(kernel)
	r := launch(t, "http_address = \"\"\nmode = \"nftables\"\n", stub("nftables", func(_ context.Context, fam policy.Family, _ modes.OpenConfig) (modes.Backend, error) {
		if fam == policy.IPv6 && !can.Load() {
			return nil, errors.New("no module")
		}
		return k, nil
	}))
	r.ready()
	warned := func() bool {
		return strings.Contains(strings.Join(r.status().Warnings, "\n"), "ipv6 is left out: no module")
	}
	if !warned() || len(r.status().Loop.Families) != 1 {
		t.Errorf("status %+v, want one family and a warning", r.status())
	}
	can.Store(true)
	r.eventually("both families in use", func() bool { return len(r.status().Loop.Families) == 2 && !warned() })
}

// auto chooses again when settings rule a mode out, or allow it again.
func TestAutoFollowsSettings(t *testing.T) {
	const auto, localhost = "http_address = \"\"\n", "http_address = \"\"\nlocalhost_node_ports = true\n"
	r := launch(t, auto, stub("nftables", opens(new(kernel))))
	r.ready()
	r.write("svcproxy.toml", localhost)
	r.eventually("in iptables mode", func() bool { return r.status().Settings.Mode == "iptables" })
	r.write("svcproxy.toml", auto)
	r.eventually("back in nftables mode", func() bool { return r.status().Settings.Mode == "nftables" })
}

// What the mode in use does not do is said where no other is available.
func TestAutoWithoutTheModeThatSettingsNeed(t *testing.T) {
	const settings = "http_address = \"\"\nfamilies = [\"ipv4\"]\n"
	r := launch(t, settings, stub("nftables", opens(new(kernel))))
	r.ready()
	r.kernel.set(func(k *kernel) { k.none = errors.New("no iptables") })
	r.write("svcproxy.toml", settings+"localhost_node_ports = true\n")
	r.eventually("warned of", func() bool {
		w := strings.Join(r.status().Warnings, "\n")
		return strings.Contains(w, `localhost_node_ports is for iptables mode, and mode is "nftables"`) && strings.Contains(w, "no iptables")
	})
	if mode := r.status().Settings.Mode; mode != "nftables" {
		t.Errorf("mode %q", mode)
	}
}
