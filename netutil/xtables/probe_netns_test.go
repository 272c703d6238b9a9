//go:build netns

package xtables

import (
	"context"
	"os/exec"
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/netutil/netnstest"
)

// A probe names what is missing, also in a table that comes after one that took its rules, and leaves nothing behind.
func TestProbe(t *testing.T) {
	mark := Feature{"mark", "nat", strings.Fields("-m mark --mark 0x1/0x1")}
	drop := Feature{"DROP", "filter", strings.Fields("-j DROP")}
	none := Feature{"none", "filter", strings.Fields("-m svcproxy-none")}
	noneFirst := Feature{"none", "nat", none.Words}
	tests := []struct {
		name     string
		features []Feature
		missing  string
	}{
		{"nothing", []Feature{mark, drop}, ""},
		{"in the second table", []Feature{mark, drop, none}, "none"},
		{"in the first table", []Feature{noneFirst, mark, drop}, "none"},
	}
	for _, variant := range []Variant{NFT, Legacy} {
		netnstest.Enter(t)
		tool := &Tool{Variant: variant}
		fatal.If(t, tool.find(tool.String()))
		for _, tt := range tests {
			missing, err := tool.Probe(t.Context(), "SVCP-PROBE", tt.features, tt.features)
			if err != nil {
				t.Errorf("%s, %s: %v", tool, tt.name, err)
			}
			if _, lacks := missing["none"]; lacks != (tt.missing != "") || len(missing) > 1 {
				t.Errorf("%s, %s: missing are %q, want %q", tool, tt.name, missing, tt.missing)
			}
			if out, err := exec.Command(tool.save).CombinedOutput(); err != nil || strings.Contains(string(out), "SVCP-") {
				t.Errorf("%s, %s: %v, left is\n%s", tool, tt.name, err, out)
			}
		}
	}
}

// Where chains of the nft variant are ours, it is chosen without a reading of all rules.
func TestChooseByNames(t *testing.T) {
	netnstest.Enter(t)
	for _, tool := range []string{"iptables-nft", "iptables-legacy"} {
		if out, err := exec.Command(tool, "-t", "nat", "-N", "OURS-A").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	got, err := Choose(t.Context(), false, "OURS-", func(ctx context.Context, tool *Tool) (map[string]*Table, error) {
		if tool.Variant == NFT {
			t.Errorf("the rules of %s are read", tool)
		}
		return tool.ReadAll(ctx, "OURS-")
	})
	fatal.If(t, err)
	if used := append(got.Stale, got.Use); len(used) != 2 || used[0].Variant == used[1].Variant {
		t.Errorf("got %v, want both variants", used)
	}
}

// A target counts as known once the legacy variant has the table and the kernel the target.
func TestHasTarget(t *testing.T) {
	netnstest.Enter(t)
	tool := &Tool{Variant: Legacy}
	if tool.HasTarget("nat", "DNAT") {
		t.Error("a table that does not exist has a target")
	}
	rule := strings.Fields("-t nat -A OUTPUT -p tcp -j DNAT --to-destination 192.0.2.1:1")
	if out, err := exec.Command("iptables-legacy", rule...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if !tool.HasTarget("nat", "DNAT") || tool.HasTarget("nat", "NONE") || tool.HasTarget("mangle", "DNAT") {
		t.Error("want the target DNAT in table nat, and no other one or table")
	}
	if nft := (&Tool{Variant: NFT}); nft.HasTarget("nat", "DNAT") {
		t.Error("the nft variant does not tell, and has a target")
	}
}
