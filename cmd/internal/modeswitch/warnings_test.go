package modeswitch

import (
	"slices"
	"testing"

	"svcproxy.dev/svcproxy/cmd/internal/modes"
	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/proxier/policy"
)

type warner struct {
	modes.Backend
	list []string
}

func (w warner) Warnings() []string { return w.list }

// A flow table that the settings ask for and the mode does not have is a warning, beside those of the backends.
func TestModeWarnings(t *testing.T) {
	asked := configs.Settings{NFTables: configs.NFTables{Flowtable: []string{"eth0"}}}
	backends := map[policy.Family]modes.Backend{policy.IPv4: warner{list: []string{"b"}}, policy.IPv6: warner{list: []string{"a"}}}
	for _, tt := range []struct {
		settings configs.Settings
		mode     configs.Mode
		want     []string
	}{
		{configs.Settings{}, configs.IPVSMode, nil},
		{asked, configs.IPVSMode, []string{"[nftables] flowtable is for nftables mode, and this is ipvs mode"}},
		{asked, configs.IPTablesMode, []string{"[nftables] flowtable is for nftables mode, and this is iptables mode", "a", "b"}},
		{asked, configs.NFTablesMode, []string{"a", "b"}},
	} {
		am := &Active{Mode: modes.Mode{Mode: tt.mode}}
		if tt.mode.Name != configs.IPVSMode.Name {
			am.Backends = backends
		}
		if got := modeWarnings(tt.settings, am); !slices.Equal(got, tt.want) {
			t.Errorf("%s mode: %q, want %q", tt.mode.Name, got, tt.want)
		}
	}
}
