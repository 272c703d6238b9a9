package daemon

import (
	"context"
	"errors"
	"os/exec"
	"testing"

	"github.com/google/go-cmp/cmp"

	"svcproxy/configs"
	"svcproxy/proxier"
)

func TestMode(t *testing.T) {
	tests := []struct{ set, name, why, err string }{
		{"auto", "iptables", "auto: the first that this build has of nftables, ipvs, iptables", ""},
		{"iptables", "iptables", "it is set", ""},
		{"ipvs", "", "", `mode "ipvs" is not in this build; set mode to "iptables" or "auto"`},
	}
	for _, tt := range tests {
		name, why, err := Mode(configs.Settings{Mode: tt.set})
		text := ""
		if err != nil {
			text = err.Error()
		}
		if name != tt.name || why != tt.why || text != tt.err {
			t.Errorf("Mode(%q) = %q, %q, %q", tt.set, name, why, text)
		}
	}
}

func TestSupported(t *testing.T) {
	s := configs.Settings{Mode: "auto", Sources: []string{"file", "kubernetes"}}
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
	old := modes
	defer func() { modes = old }()
	modes = []mode{{name: "iptables", open: func(_ context.Context, fam proxier.Family) (backend, error) {
		if fam == proxier.IPv6 {
			return nil, errors.New("no ip6tables")
		}
		return four, nil
	}}}
	backends, missing, err := open(t.Context(), "iptables", configs.Settings{Families: []string{"ipv4", "ipv6"}})
	if err != nil || len(backends) != 1 || backends[proxier.IPv4] != four {
		t.Errorf("open = %v, %v", backends, err)
	}
	if diff := cmp.Diff([]string{"ipv6 is left out: no ip6tables"}, missing); diff != "" {
		t.Errorf("missing (-want +got):\n%s", diff)
	}
	_, _, err = open(t.Context(), "iptables", configs.Settings{Families: []string{"ipv6"}})
	if want := "iptables mode: ipv6 is left out: no ip6tables"; err == nil || err.Error() != want {
		t.Errorf("open with no family: %v, want %s", err, want)
	}
}

// A bad backend for cleaning up.
type stubborn struct{ kernel }

func (*stubborn) Cleanup(context.Context) error { return errors.New("busy") }

func TestCleanupGoesOn(t *testing.T) {
	old := modes
	defer func() { modes = old }()
	modes = []mode{
		{name: "nftables", open: func(context.Context, proxier.Family) (backend, error) {
			return nil, &exec.Error{Name: "nft", Err: exec.ErrNotFound}
		}},
		{name: "ipvs", open: func(context.Context, proxier.Family) (backend, error) { return new(kernel), nil }},
		{name: "iptables", open: func(context.Context, proxier.Family) (backend, error) { return new(stubborn), nil }},
	}
	want := "cleaning up iptables mode, ipv4: busy\ncleaning up iptables mode, ipv6: busy"
	if err := Cleanup(t.Context()); err == nil || err.Error() != want {
		t.Errorf("Cleanup: %v\n   want: %s", err, want)
	}
}
