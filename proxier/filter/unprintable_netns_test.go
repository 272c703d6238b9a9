//go:build netns

package filter

import (
	"fmt"
	"testing"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/netutil/netnstest"
	"svcproxy.dev/svcproxy/netutil/xtables"
	"svcproxy.dev/svcproxy/proxier/filter/layout"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// A script for thousands of chains, for which iptables-restore lists the table first, is
// written beside rules that it cannot list, and read.
func TestManyChainsBesideUnprintable(t *testing.T) {
	netnstest.Enter(t)
	k, err := open(t.Context(), policy.IPv4, &xtables.Choice{Use: toolOf(t, xtables.NFT)})
	fatal.If(t, err)
	t.Cleanup(func() { k.Close() })
	command(t, "iptables-nft", "-t", "nat", "-P", "OUTPUT", "ACCEPT")
	command(t, "nft", "add rule ip nat OUTPUT ct mark vmap { 7 : accept }")
	const n = 2000 // from which on there is a listing
	var s xtables.Script
	sums := map[string]xtables.Sum{}
	for i := range n {
		name := fmt.Sprintf("%sMANY-%d", layout.Prefix, i)
		rules := fmt.Appendf(nil, "-A %s -j RETURN\n", name)
		s.Set("nat", name, rules)
		sums[name] = xtables.SumOf(rules)
	}
	fatal.If(t, k.restore(t.Context(), k.tool, &s))
	tables, err := readAll(t.Context(), k.tool)
	fatal.If(t, err)
	if got := tables["nat"].Chains; len(got) != n {
		t.Fatalf("read %d chains, wrote %d", len(got), n)
	}
	for name, sum := range sums {
		if tables["nat"].Chains[name] != sum {
			t.Fatalf("chain %s is read otherwise than it was written", name)
		}
	}
	if left, err := k.purge(t.Context(), k.tool); err != nil || len(left) > 0 {
		t.Errorf("removing the chains: left %v, error %v", left, err)
	}
}
