package modes

import (
	"slices"
	"testing"

	"svcproxy.dev/svcproxy/configs"
)

// What settings can name is what there is, and in the same order, which is that of auto.
func TestAllModesHaveAName(t *testing.T) {
	names := func(list []configs.Mode) (names []string) {
		for _, m := range list {
			names = append(names, m.Name)
		}
		return names
	}
	var all []configs.Mode
	for _, m := range All {
		all = append(all, m.Mode)
		if m.Open == nil || m.Compare == nil || m.Objects == nil {
			t.Errorf("%s mode cannot be opened, or not say what it has in the kernel", m.Name)
		}
		if !slices.ContainsFunc(All, func(o Mode) bool { return m.RulesOf == "" || m.RulesOf == o.Name }) {
			t.Errorf("%s mode leaves its rules to %q, which is none", m.Name, m.RulesOf)
		}
	}
	if got, want := names(all), names(configs.Modes); !slices.Equal(got, want) {
		t.Errorf("modes %q, and settings know %q", got, want)
	}
}

// Init prepares a host for what auto may take, except for modes that are to be named.
func TestOfSetting(t *testing.T) {
	for _, tt := range []struct {
		setting, mode string
		want          bool
	}{
		{"auto", "nftables", true}, {"auto", "ipvs", false}, {"auto", "iptables", true},
		{"ipvs", "ipvs", true}, {"ipvs", "iptables", false}, {"other", "nftables", false},
	} {
		if got := slices.ContainsFunc(OfSetting(tt.setting), func(m Mode) bool { return m.Name == tt.mode }); got != tt.want {
			t.Errorf("mode %q prepares for %s: %v, want %v", tt.setting, tt.mode, got, tt.want)
		}
	}
}
