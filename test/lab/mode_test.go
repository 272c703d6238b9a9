//go:build netns

package lab

import (
	"fmt"
	"slices"
	"strings"

	"svcproxy.dev/svcproxy/internal/pace"
)

// A mode is one way of svcproxy to work. All modes pass the same cases, except for
// those that a case names itself.
type mode struct {
	name    string // as the setting has it
	variant string // of iptables, where that makes a difference
	alien   string // in a line of a Snapshot: what this mode must not make

	// prepare brings a namespace into the state that makes svcproxy work this way.
	prepare func(h *Host) error

	// translateForeign adds or deletes the rule by which another program translates foreignAddr.
	translateForeign func(h *Host, on bool) error

	damages []damage
}

// A damage is what another process may do to the objects of svcproxy.
type damage struct {
	name   string
	do     func(h *Host) error
	frozen bool // svcproxy stands still meanwhile: it may repair faster than this is done
}

func (m mode) String() string { return strings.TrimSuffix(m.name+"-"+m.variant, "-") }

// The modes. iptables stays with the variant that already holds rules, so the foreign rules choose it.
var modes = []mode{
	iptablesMode("nft"),
	iptablesMode("legacy"),
	nftablesMode(),
}

func iptablesMode(variant string) mode {
	alien := map[string]string{"nft": "-legacy-save", "legacy": "-nft-save"}[variant]
	return mode{
		name: "iptables", variant: variant, alien: alien,
		prepare:          func(h *Host) error { return makeForeign(h, variant) },
		translateForeign: func(h *Host, on bool) error { return translateForeign(h, variant, on) },
		damages:          iptablesDamages(variant),
	}
}

// foreignRules are rules of another program, some with names close to ours.
const foreignRules = `*filter
:FOREIGN - [0:0]
:SVCPX-KEEP - [0:0]
-A INPUT -j FOREIGN
-A FORWARD -j SVCPX-KEEP
-A FOREIGN -s {{drop}} -m comment --comment "not ours" -j DROP
-A FOREIGN -m set --match-set {{set}} src -j RETURN
COMMIT
*nat
:FOREIGN-NAT - [0:0]
-A PREROUTING -j FOREIGN-NAT
-A OUTPUT -j FOREIGN-NAT
-A POSTROUTING -s {{drop}} -j MASQUERADE
COMMIT
*mangle
-A PREROUTING -s {{drop}} -j MARK --set-xmark 0x1/0x1
COMMIT
`

// foreign are the foreign objects of one family.
type foreign struct {
	tool, family, set string
	drop, from, to    string
}

var foreigns = []foreign{
	{"iptables-", "inet", "SVCPX4", "198.51.100.7", foreignAddr.V4.String(), "10.4.0.3:8080"},
	{"ip6tables-", "inet6", "SVCPX6", "2001:db8::7", foreignAddr.V6.String(), "[fd00:4::3]:8080"},
}

// makeForeign puts the objects of another program into a namespace, with one variant of iptables.
func makeForeign(h *Host, variant string) error {
	for _, f := range foreigns {
		sets := fmt.Sprintf("create %s hash:ip family %s\nadd %s %s\n", f.set, f.family, f.set, f.drop)
		if _, err := h.RunInput(sets, "ipset", "restore"); err != nil {
			return err
		}
		rules := strings.NewReplacer("{{drop}}", f.drop, "{{set}}", f.set).Replace(foreignRules)
		if _, err := h.RunInput(rules, f.tool+variant+"-restore", "-w"); err != nil {
			return err
		}
	}
	const table = "table inet foreign { chain c { type filter hook input priority 5; }; }\n"
	if _, err := h.RunInput(table, "nft", "-f", "-"); err != nil {
		return err
	}
	return translateForeign(h, variant, true)
}

// translateForeign adds or deletes the rule that sends foreignAddr to local3.
func translateForeign(h *Host, variant string, on bool) error {
	command := "-D"
	if on {
		command = "-A"
	}
	for _, f := range foreigns {
		_, err := h.Run(f.tool+variant, "-w", "-t", "nat", command, "FOREIGN-NAT", "-d", f.from,
			"-p", "udp", "--dport", "80", "-j", "DNAT", "--to-destination", f.to)
		if err != nil {
			return err
		}
	}
	return nil
}

func iptablesDamages(variant string) []damage {
	var damages []damage
	for _, lines := range []string{
		"*filter -F",
		"*filter -F -X",
		"*nat -F",
		"*nat -F -X",
		"*mangle -F -X",
		"*filter -F -X COMMIT *nat -F -X COMMIT *mangle -F -X",
	} {
		damages = append(damages, damage{name: lines, frozen: true, do: func(h *Host) error { return restore(h, variant, lines) }})
	}
	return append(damages,
		damage{name: "jumps deleted", frozen: true, do: func(h *Host) error { return deleteJumps(h, variant) }},
		damage{name: "rules deleted", frozen: true, do: func(h *Host) error { return emptyChains(h, variant) }},
		damage{name: "rules inserted", frozen: true, do: func(h *Host) error { return insertRules(h, variant) }},
		damage{name: "chains and sets added", frozen: true, do: func(h *Host) error { return addStrays(h, variant) }},
		damage{name: "sets flushed", frozen: true, do: func(h *Host) error { return eachSet(h, "flush") }},
		damage{name: "sets deleted", frozen: true, do: func(h *Host) error { return destroySets(h, variant) }},
	)
}

// restore passes lines to iptables-restore and ip6tables-restore. They are divided by spaces, and their words by _.
func restore(h *Host, variant, lines string) error {
	return editRules(h, variant, func([]string) []string {
		return append(strings.Split(strings.NewReplacer(" ", "\n", "_", " ").Replace(lines), "\n"), "COMMIT")
	})
}

// setForwardPolicy sets what becomes of forwarded packets that no rule decides on.
func setForwardPolicy(h *Host, variant, policy string) error {
	for _, f := range foreigns {
		if _, err := h.Run(f.tool+variant, "-w", "-P", "FORWARD", policy); err != nil {
			return err
		}
	}
	return nil
}

// editRules passes a listing of all rules back to the kernel, in both families, as edit changes its lines.
func editRules(h *Host, variant string, edit func(lines []string) []string) error {
	for _, f := range foreigns {
		rules, err := h.Run(f.tool + variant + "-save")
		if err != nil {
			return err
		}
		text := strings.Join(edit(strings.Split(rules, "\n")), "\n") + "\n"
		if _, err := h.RunInput(text, f.tool+variant+"-restore", "-w", "--noflush"); err != nil {
			return err
		}
	}
	return nil
}

// frames reports whether a line begins or ends a table in a listing.
func frames(line string) bool { return strings.HasPrefix(line, "*") || line == "COMMIT" }

// deleteJumps removes our jumps from the built-in chains.
func deleteJumps(h *Host, variant string) error {
	return editRules(h, variant, func(lines []string) (edited []string) {
		for _, line := range lines {
			rule, added := strings.CutPrefix(line, "-A ")
			switch {
			case frames(line):
				edited = append(edited, line)
			case added && !strings.HasPrefix(rule, "SVCP-") && strings.Contains(rule, "-j SVCP-"):
				edited = append(edited, "-D "+rule)
			}
		}
		return edited
	})
}

// emptyChains removes the rules of our chains, but neither the chains nor the jumps to them.
func emptyChains(h *Host, variant string) error {
	return editRules(h, variant, func(lines []string) []string {
		return slices.DeleteFunc(lines, func(line string) bool {
			return !frames(line) && !strings.HasPrefix(line, ":SVCP-") // naming a chain empties it
		})
	})
}

// insertRules makes packets leave each of our chains at once.
func insertRules(h *Host, variant string) error {
	return editRules(h, variant, func(lines []string) (edited []string) {
		for _, line := range lines {
			chain, ok := strings.CutPrefix(line, ":SVCP-")
			switch {
			case frames(line):
				edited = append(edited, line)
			case ok:
				edited = append(edited, "-I SVCP-"+strings.Fields(chain)[0]+" -j RETURN")
			}
		}
		return edited
	})
}

// addStrays adds objects that bear our names, as another version may have left them.
func addStrays(h *Host, variant string) error {
	if _, err := h.Run("ipset", "create", "SVCP-STRAY", "hash:ip"); err != nil {
		return err
	}
	return restore(h, variant, "*nat :SVCP-STRAY_- -A_SVCP-STRAY_-j_RETURN -A_PREROUTING_-j_SVCP-STRAY COMMIT *filter :SVCP-STRAY_-")
}

// destroySets removes the rules that use sets, and the sets. A program that
// svcproxy has started may write rules in between.
func destroySets(h *Host, variant string) error {
	return pace.Poll(expectPatience, func() error {
		if err := restore(h, variant, "*filter -F COMMIT *nat -F COMMIT *mangle -F"); err != nil {
			return err
		}
		return eachSet(h, "destroy")
	})
}

// eachSet runs an ipset command for each of our sets.
func eachSet(h *Host, command string) error {
	names, err := h.Run("ipset", "list", "-name")
	if err != nil {
		return err
	}
	for name := range strings.FieldsSeq(names) {
		if !strings.HasPrefix(name, "SVCP-") {
			continue
		}
		if _, err := h.Run("ipset", command, name); err != nil {
			return err
		}
	}
	return nil
}
