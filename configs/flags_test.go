package configs_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/internal/fatal"
)

// apply overlays settings with flags.
func apply(t *testing.T, s configs.Settings, args ...string) configs.Settings {
	t.Helper()
	var f configs.Flags
	set := pflag.NewFlagSet("svcproxy", pflag.ContinueOnError)
	f.Bind(set)
	fatal.If(t, set.Parse(args))
	f.Apply(&s)
	return s
}

func TestFlags(t *testing.T) {
	if diff := cmp.Diff(every(), apply(t, every()), comparePrefix); diff != "" {
		t.Errorf("flags that nobody gave changed settings:\n%s", diff)
	}
	got := apply(t, every(), "--mode=iptables", "--sources", "file", "--node-name=Node-B", "--zone=", "--families=ipv4, ipv6", "--local-cidrs=10.1.0.0/16",
		"--local-cidrs=10.2.0.0/16", "--local-interfaces=", "--masquerade=all", "--masquerade-bit=31", "--service-cidrs=10.0.0.0/24,fd00::/64",
		"--node-port-addresses=primary", "--localhost-node-ports=false", "--http-address=[::]:80", "--metrics-address=[::]:81", "--status-address=:82", "--http-names=lb1,lb2")
	want := every()
	want.Mode, want.Sources, want.NodeName, want.Zone = "iptables", []string{"file"}, "node-b", ""
	want.Families = []string{"ipv4", "ipv6"}
	want.LocalCIDRs = []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("10.2.0.0/16")}
	want.LocalInterfaces, want.Masquerade, want.MasqueradeBit = nil, "all", 31
	want.ServiceCIDRs = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24"), netip.MustParsePrefix("fd00::/64")}
	want.NodePortAddresses, want.LocalhostNodePorts, want.HTTPAddress = []string{"primary"}, false, "[::]:80"
	want.MetricsAddress, want.StatusAddress, want.HTTPNames = "[::]:81", ":82", []string{"lb1", "lb2"}
	if diff := cmp.Diff(want, got, comparePrefix); diff != "" {
		t.Errorf("settings (-want +got):\n%s", diff)
	}
	if s := apply(t, configs.Default(), "--localhost-node-ports"); !s.LocalhostNodePorts {
		t.Error("a flag without a value is not true")
	}
}

func TestFlagFaults(t *testing.T) {
	tests := []struct{ arg, want string }{
		{"--masquerade=nevre", `invalid argument "nevre" for "--masquerade" flag: unknown masquerade mode "nevre"; want auto, all or never; did you mean "never"?`},
		{"--masquerade-bit=32", `invalid argument "32" for "--masquerade-bit" flag: masquerade_bit is 32; want 0 to 31`},
		{"--masquerade-bit=x", `invalid argument "x" for "--masquerade-bit" flag: masquerade_bit is "x", a string; want a number from 0 to 31`},
		{"--localhost-node-ports=maybe", `invalid argument "maybe" for "--localhost-node-ports" flag: localhost_node_ports is "maybe", a string; want true or false`},
		{"--local-cidrs=10.0.0.0/8,10.0.0.1/8", `invalid argument "10.0.0.0/8,10.0.0.1/8" for "--local-cidrs" flag: "10.0.0.1/8" has bits set behind its length of 8; write "10.0.0.0/8"`},
		{"--sources=", `invalid argument "" for "--sources" flag: the list is empty; want one at least`},
		{"--node-name=", `invalid argument "" for "--node-name" flag: node_name is ""; want 1 to 253 letters, digits, -, _ and .`},
	}
	for _, tt := range tests {
		var f configs.Flags
		set := pflag.NewFlagSet("svcproxy", pflag.ContinueOnError)
		f.Bind(set)
		if err := set.Parse([]string{tt.arg}); err == nil || err.Error() != tt.want {
			t.Errorf("%s\n got: %v\nwant: %s", tt.arg, err, tt.want)
		}
		s := configs.Default()
		if f.Apply(&s); cmp.Diff(configs.Default(), s, comparePrefix) != "" {
			t.Errorf("%s: applied in spite of its fault", tt.arg)
		}
	}
}

func TestBindRegistersOnlySomeFlags(t *testing.T) {
	var f configs.Flags
	set := pflag.NewFlagSet("svcproxy", pflag.ContinueOnError)
	f.Bind(set, "mode", "node_name")
	var names []string
	set.VisitAll(func(fl *pflag.Flag) { names = append(names, fl.Name) })
	if diff := cmp.Diff([]string{"mode", "node-name"}, names); diff != "" {
		t.Errorf("flags (-want +got):\n%s", diff)
	}
}

func TestFlagHelp(t *testing.T) {
	var f configs.Flags
	set := pflag.NewFlagSet("svcproxy", pflag.ContinueOnError)
	f.Bind(set)
	count := 0
	set.VisitAll(func(fl *pflag.Flag) {
		count++
		if fl.Usage == "" {
			t.Errorf("--%s has no help", fl.Name)
		}
	})
	if count != 17 {
		t.Errorf("%d flags", count)
	}
	help := set.FlagUsages()
	for _, want := range []string{"--families list", `(default ipv4,ipv6)`, "--masquerade-bit int", "(default 14)", "--localhost-node-ports "} {
		if !strings.Contains(help, want) {
			t.Errorf("no %q in\n%s", want, help)
		}
	}
}

// Each flag says what it is for.
func TestFlagsHaveHelp(t *testing.T) {
	var f configs.Flags
	set := pflag.NewFlagSet("svcproxy", pflag.ContinueOnError)
	f.Bind(set)
	set.VisitAll(func(fl *pflag.Flag) {
		if fl.Usage == "" {
			t.Errorf("--%s has no help", fl.Name)
		}
	})
}
