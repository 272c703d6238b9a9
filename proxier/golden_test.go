package proxier_test

import (
	"bytes"
	"flag"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/proxier/filter/layout"
	"svcproxy.dev/svcproxy/proxier/ipvs"
	"svcproxy.dev/svcproxy/proxier/nftables/nfttest"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/read"
)

var update = flag.Bool("update", false, "rewrite what the golden scenarios want")

// Each file of testdata is one scenario: services and, where they matter,
// settings, and what each mode makes of them, in the words of its own tools.
// The node has the addresses 192.0.2.1 and 2001:db8::1, which serve node ports, and services
// may have theirs on 203.0.113.65.
func TestGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, path := range files {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) { golden(t, path) })
	}
}

func golden(t *testing.T, path string) {
	ar, err := txtar.ParseFile(path)
	fatal.If(t, err)
	services, node := parse(t, ar)
	got := map[string]string{
		"want.iptables":  rules(t, layout.NewRules, policy.IPv4, node, services),
		"want.ip6tables": rules(t, layout.NewRules, policy.IPv6, node, services),
		"want.ipvs":      servers(t, policy.IPv4, node, services),
		"want.ipvs6":     servers(t, policy.IPv6, node, services),
		"want.nft":       table(policy.IPv4, node, services),
		"want.nft6":      table(policy.IPv6, node, services),
	}
	if *update {
		rewrite(t, path, ar, got)
		return
	}
	for name, text := range got {
		if diff := cmp.Diff(section(ar, name), text); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// parse returns the services and the node of a scenario.
func parse(t *testing.T, ar *txtar.Archive) ([]*source.Service, *policy.Node) {
	services, faults := read.Parse("services.toml", []byte(section(ar, "services.toml")))
	set, more := configs.Parse("svcproxy.toml", []byte(section(ar, "svcproxy.toml")))
	for _, f := range append(faults, more...) {
		if !f.Warning { // some scenarios are of what a warning is about
			t.Error(f)
		}
	}
	own := []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}
	return services, &policy.Node{
		Name: "this-node", Zone: set.Zone, Addrs: own, NodePortAddrs: own, PrimaryAddrs: own,
		UpAddrs:            append(slices.Clone(own), netip.MustParseAddr("203.0.113.65")),
		LocalhostNodePorts: set.LocalhostNodePorts,
		LocalCIDRs:         set.LocalCIDRs,
		LocalInterfaces:    set.LocalInterfaces,
		Masquerade:         map[string]source.Masquerading{"all": source.MasqueradeAll, "never": source.MasqueradeNever}[set.Masquerade],
		MarkBit:            set.MasqueradeBit,
		ServiceCIDRs:       set.ServiceCIDRs,
	}
}

// rules returns what iptables-save and ipset save would say. What is there in
// every scenario is left out: chains that depend on settings only, where the
// scenario has none, and empty sets.
func rules(t *testing.T, newRules func(policy.Family) *layout.Rules, fam policy.Family, node *policy.Node, services []*source.Service) string {
	st := policy.NewState(fam, node, services)
	r := newRules(fam)
	fatal.If(t, r.Reset(st))
	constant := constantChains(t, newRules, fam)
	chains := map[string]string{}
	r.Chains(func(_, chain string, rules []byte) {
		if text := string(rules); constant[chain] != text {
			chains[chain] = text
		}
	})
	var b bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(chains)) {
		b.WriteString(chains[name])
	}
	for _, line := range members(r.Sets(st)) {
		fmt.Fprintln(&b, line)
	}
	return b.String()
}

// servers returns what ipvsadm-save would say, what ip would take for the
// addresses of our device, and what iptables-save and ipset save would say.
func servers(t *testing.T, fam policy.Family, node *policy.Node, services []*source.Service) string {
	lines := ipvs.Text(policy.NewState(fam, node, services), configs.Default().IPVS.Scheduler)
	return strings.Join(append(lines, ""), "\n") + rules(t, layout.NewIPVSRules, fam, node, services)
}

// table returns what nft would take for our table: its elements, and its rules
// except for those that are there in every scenario.
func table(fam policy.Family, node *policy.Node, services []*source.Service) string {
	constant := nfttest.Text(policy.NewState(fam, &policy.Node{MarkBit: configs.Default().MasqueradeBit}, nil))
	var b strings.Builder
	hashed := map[string]int{} // slots of scheduler maglev, of which two of each map do
	for _, line := range nfttest.Text(policy.NewState(fam, node, services)) {
		if slices.Contains(constant, line) {
			continue
		}
		if name := hashedSlots.FindString(line); name != "" {
			if hashed[name]++; hashed[name] > 2 {
				continue
			}
		}
		fmt.Fprintln(&b, line)
	}
	for _, name := range slices.Sorted(maps.Keys(hashed)) {
		fmt.Fprintf(&b, "%s... and so on, %d in all\n", name, hashed[name])
	}
	return b.String()
}

var hashedSlots = regexp.MustCompile(`^add element \S+ svcproxy \S*maglev-ip\S*-slots-\d+ `)

// constantChains are the chains without services and settings.
func constantChains(t *testing.T, newRules func(policy.Family) *layout.Rules, fam policy.Family) map[string]string {
	own := []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}
	r := newRules(fam)
	fatal.If(t, r.Reset(policy.NewState(fam, &policy.Node{NodePortAddrs: own, MarkBit: configs.Default().MasqueradeBit}, nil)))
	chains := map[string]string{}
	r.Chains(func(_, chain string, rules []byte) { chains[chain] = string(rules) })
	return chains
}

func members(sets map[string]layout.Members) []string {
	var lines []string
	for name, m := range sets {
		for e := range m.Entries {
			lines = append(lines, fmt.Sprintf("add %s %s", name, e))
		}
	}
	slices.Sort(lines)
	return lines
}

func section(ar *txtar.Archive, name string) string {
	for _, f := range ar.Files {
		if f.Name == name {
			return string(f.Data)
		}
	}
	return ""
}

func rewrite(t *testing.T, path string, ar *txtar.Archive, got map[string]string) {
	ar.Files = slices.DeleteFunc(ar.Files, func(f txtar.File) bool { return strings.HasPrefix(f.Name, "want.") })
	for _, name := range slices.Sorted(maps.Keys(got)) {
		ar.Files = append(ar.Files, txtar.File{Name: name, Data: []byte(got[name])})
	}
	fatal.If(t, os.WriteFile(path, txtar.Format(ar), 0o644))
}
