//go:build netns

package iptables_test

import (
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/proxier/backendtest"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// unprintable are foreign rules, each in commands of nft for a family, that the programs
// of iptables cannot print.
var unprintable = []struct {
	name     string
	commands []string
}{
	{"verdict map in filter INPUT", []string{"add rule FAMILY filter INPUT ct state vmap { established : accept, invalid : drop }"}},
	{"first in filter FORWARD", []string{"insert rule FAMILY filter FORWARD meta mark . ct state vmap { 1 . established : accept }"}},
	{"every chain of nat and filter", []string{
		"add rule FAMILY nat PREROUTING ct mark vmap { 7 : accept }",
		"add rule FAMILY nat OUTPUT ct mark vmap { 7 : accept }",
		"add rule FAMILY nat POSTROUTING ct mark vmap { 7 : accept }",
		"add rule FAMILY filter INPUT ct mark vmap { 7 : accept }",
		"add rule FAMILY filter FORWARD ct mark vmap { 7 : accept }",
		"add rule FAMILY filter OUTPUT ct mark vmap { 7 : accept }",
	}},
	{"a chain of others", []string{"add rule FAMILY filter FOREIGN ct mark vmap { 7 : accept }"}},
	{"sets and maps", []string{
		"add set FAMILY filter marks { type mark; }",
		"add map FAMILY filter verdicts { type mark : verdict; }",
		"add element FAMILY filter verdicts { 7 : goto FOREIGN }",
		"add rule FAMILY filter INPUT meta mark @marks ct mark vmap @verdicts",
	}},
	{"a base chain of nft", []string{
		"add chain FAMILY filter input { type filter hook input priority 0; }",
		"add rule FAMILY filter input ct mark vmap { 7 : accept }",
	}},
	{"table mangle", []string{
		"add table FAMILY mangle",
		"add chain FAMILY mangle PREROUTING { type filter hook prerouting priority mangle; }",
		"add rule FAMILY mangle PREROUTING ct mark vmap { 7 : accept }",
	}},
}

// Rules of others that iptables cannot print do not keep svcproxy from serving, changing and repairing services, and cleanup
// removes what is ours.
func TestUnprintableRules(t *testing.T) {
	for _, tt := range unprintable {
		for _, fam := range []policy.Family{policy.IPv4, policy.IPv6} {
			t.Run(tt.name+" "+fam.String(), func(t *testing.T) {
				h := newHost(t, "nft", fam)
				family := map[policy.Family]string{policy.IPv4: "ip", policy.IPv6: "ip6"}[fam]
				for _, chain := range []string{"nat PREROUTING", "nat OUTPUT", "nat POSTROUTING", "filter INPUT", "filter FORWARD", "filter OUTPUT"} {
					h.iptables("-t " + strings.Replace(chain, " ", " -P ", 1) + " ACCEPT") // makes the chain
				}
				for _, c := range tt.commands {
					run(t, "nft", strings.ReplaceAll(c, "FAMILY", family))
				}
				h.Restart()
				h.Fill(seeded(7), 5)
				h.Sync(nil)
				h.Settled("start")
				h.servedBesideUnprintable(family)
			})
		}
	}
}

// A rule of nft in a built-in chain that jumps to an obsolete chain of ours stops nothing: the
// chain stays, empty, until the rule is gone.
func TestNativeRuleLeadsToOurs(t *testing.T) {
	h := newHost(t, "nft", policy.IPv4)
	h.iptables("-t nat -P PREROUTING ACCEPT")
	h.iptables("-t nat -N SVCP-OBSOLETE")
	run(t, "nft", "add rule ip nat PREROUTING ct mark 7 jump SVCP-OBSOLETE")
	h.Fill(seeded(8), 5)
	h.Sync(nil)
	h.Settled("start")
	err := h.Backend.Cleanup(t.Context())
	if err == nil || !strings.HasSuffix(err.Error(), "chain SVCP-OBSOLETE of table nat stays, empty: PREROUTING jumps to it") {
		t.Errorf("cleanup: %v", err)
	}
	run(t, "nft", "flush chain ip nat PREROUTING")
	h.Must(h.Backend.Cleanup(t.Context()))
	if left := run(t, "nft", "list ruleset"); strings.Contains(left, "SVCP-") {
		t.Errorf("left:\n%s", left)
	}
}

func (h *host) servedBesideUnprintable(family string) {
	h.Helper()
	h.Put(backendtest.Web(h.Family, 900, 3))
	h.Settled("a change")
	if h.Look() {
		h.Error("a look finds a difference where there is none")
	}
	for _, harm := range []string{
		"-t nat -F SVCP-SERVICES", "-t nat -D PREROUTING -j SVCP-SERVICES",
		"-D FORWARD -j SVCP-FORWARD", "-D INPUT -m conntrack --ctstate NEW -j SVCP-FILTER",
	} {
		h.iptables(harm)
		if !h.Look() {
			h.Errorf("iptables %s: a look does not find it", harm)
		}
		h.Repair(&policy.Delta{})
		h.Settled("iptables " + harm)
	}
	run(h, "nft", "insert rule "+family+" filter SVCP-FORWARD ct mark vmap { 7 : accept }")
	if !h.Look() {
		h.Error("a look does not find a rule of nft in a chain of ours")
	}
	h.Repair(&policy.Delta{})
	h.Settled("a rule of nft in a chain of ours")
	h.Must(h.Backend.Cleanup(h.Context()))
	ruleset := run(h, "nft", "list", "ruleset")
	if strings.Contains(ruleset, "chain SVCP-") || strings.Contains(ruleset, "jump SVCP-") {
		h.Errorf("left after cleanup:\n%s", ruleset)
	}
	if !strings.Contains(ruleset, "vmap") {
		h.Errorf("cleanup removed the rules of others:\n%s", ruleset)
	}
}
