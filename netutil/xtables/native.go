package xtables

import (
	"encoding/binary"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/netutil/nft"
)

// unprintableSum is the sum of a chain of ours with rules that iptables cannot print: none of
// ours has it.
var unprintableSum = SumOf([]byte("rules that iptables cannot print"))

// family returns the family of the tool's tables in nf_tables.
func (t *Tool) family() byte {
	if t.IPv6 {
		return unix.NFPROTO_IPV6
	}
	return unix.NFPROTO_IPV4
}

// nativeRule takes in a rule of a chain that iptables cannot print as a whole.
func (p *parser) nativeRule(chain string, r nft.ListedRule) {
	if strings.HasPrefix(chain, string(p.prefix)) {
		return
	}
	if text, ok := jumpText(r.Exprs); ok {
		p.foreignRule(chain, []byte(text))
		return
	}
	for _, e := range r.Exprs {
		if _, to, _ := e.Verdict(); strings.HasPrefix(to, string(p.prefix)) {
			p.table.NativeJumps[chain] = append(p.table.NativeJumps[chain], to)
		}
	}
	p.table.Foreign++
	p.foreign[chain]++
	if nativeOverrules(p.name, r.Exprs) {
		p.goesAhead(chain, fmt.Sprintf("the rule with handle %d, as nft -a list chain shows it", r.Handle))
	}
}

// jumpText returns a rule as iptables-save prints it, if it only jumps to a chain, maybe
// with packets of some states of their connections. No jump of ours is another.
func jumpText(exprs []nft.Expression) (text string, ok bool) {
	for i, e := range exprs {
		name, info := e.Extension()
		_, to, leads := e.Verdict()
		switch {
		case e.Name == "counter":
		case e.Name == "match" && name == "conntrack" && text == "":
			states, ok := statesOf(info)
			if !ok {
				return "", false
			}
			text = "-m conntrack --ctstate " + states + " "
		case leads && to != "" && i == len(exprs)-1:
			return text + verb(e) + to, true
		default:
			return "", false
		}
	}
	return "", false
}

func verb(e nft.Expression) string {
	if code, _, _ := e.Verdict(); code == unix.NFT_GOTO {
		return "-g "
	}
	return "-j "
}

// Offsets in struct xt_conntrack_mtinfo3, <linux/netfilter/xt_conntrack.h>: eight
// addresses, six numbers of the protocol and of ports, and what is compared.
const (
	conntrackFlags  = 146
	conntrackInvert = 148
	conntrackStates = 150
	conntrackLength = 154

	onlyStates = 1 // XT_CONNTRACK_STATE
)

// conntrackStateBits are the bits of states, in the order in which iptables-save prints
// them: XT_CONNTRACK_STATE_BIT of enum ip_conntrack_info, and XT_CONNTRACK_STATE_UNTRACKED.
var conntrackStateBits = []struct {
	bit  uint16
	name string
}{{1, "INVALID"}, {8, "NEW"}, {4, "RELATED"}, {2, "ESTABLISHED"}, {256, "UNTRACKED"}}

// statesOf returns the states that a match conntrack of revision 3 asks for; not ok: it
// asks for more, or for other things.
func statesOf(info []byte) (text string, ok bool) {
	if len(info) < conntrackLength {
		return "", false
	}
	field := func(at int) uint16 { return binary.NativeEndian.Uint16(info[at:]) }
	left := field(conntrackStates)
	if field(conntrackFlags) != onlyStates || field(conntrackInvert) != 0 {
		return "", false
	}
	var names []string
	for _, s := range conntrackStateBits {
		if left&s.bit != 0 {
			names, left = append(names, s.name), left&^s.bit
		}
	}
	return strings.Join(names, ","), left == 0 && len(names) > 0
}
