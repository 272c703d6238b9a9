package modeswitch

import (
	"context"
	"errors"
	"testing"

	"svcproxy.dev/svcproxy/cmd/internal/modes"
	"svcproxy.dev/svcproxy/cmd/internal/modes/modestest"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// The kernel may serve what any mode has of it, and what the mode in use does not tell of.
func TestKernelMayServeWhatAnyModeLeft(t *testing.T) {
	telling := func(name string, err error, present ...bool) modes.Mode {
		m := modestest.Stub(name, nil)
		m.Objects = func(ctx context.Context, st *policy.State) (list []proxier.Object, _ error) {
			if _, bounded := ctx.Deadline(); !bounded || st.Family != policy.IPv6 {
				t.Errorf("%s was asked for %s without end", name, st.Family)
			}
			for _, is := range present {
				list = append(list, proxier.Object{Present: is})
			}
			return list, err
		}
		return m
	}
	none := telling("ipvs", nil, false)
	broken := errors.New("no such module")
	for _, tt := range []struct {
		name  string
		modes []modes.Mode
		want  bool
	}{
		{"nothing", []modes.Mode{telling("nftables", nil, false, false), none}, false},
		{"in part", []modes.Mode{telling("nftables", nil, false, true), none}, true},
		{"of another mode", []modes.Mode{telling("nftables", nil), telling("iptables", nil, true)}, true},
		{"not told", []modes.Mode{telling("nftables", broken), none}, true},
		{"not told by another mode", []modes.Mode{telling("nftables", nil, false), telling("ipvs", broken)}, false},
	} {
		modestest.Use(t, tt.modes...)
		if got := mayServe(t.Context(), "nftables", &policy.State{Family: policy.IPv6}); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}
