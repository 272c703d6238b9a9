package filter

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"svcproxy/proxier"
)

// A Jump is a rule of a built-in chain that leads to ours.
type Jump struct{ Table, Chain, Rule string }

// newOnly lets new connections through. Packets of others, of no connection
// (INVALID) and neighbour discovery (UNTRACKED) never meet a refusal.
const newOnly = "-m conntrack --ctstate NEW"

// jumps are in the order in which they stand in their chains: what is refused
// must not be accepted by the next.
var jumps = []Jump{
	{"nat", "PREROUTING", "-j " + Services},
	{"nat", "OUTPUT", "-j " + Services},
	{"nat", "POSTROUTING", "-j " + Postrouting},
	{"filter", "INPUT", newOnly + " -j " + Filter},
	{"filter", "FORWARD", newOnly + " -j " + Filter},
	{"filter", "FORWARD", "-j " + Forward},
	{"filter", "OUTPUT", newOnly + " -j " + Filter},
}

// hostChains emits the chains that depend on this host only.
func (r *Rules) hostChains(emit Emit) {
	c := &chain{}
	for _, part := range []struct {
		table, name string
		fill        func(*chain)
	}{
		{"nat", MarkMasq, r.mark},
		{"nat", MarkNonLocal, r.markNonLocal},
		{"nat", Postrouting, r.postrouting},
		{"filter", Filter, r.refusals},
		{"filter", Forward, r.forward},
	} {
		c.start(part.name)
		part.fill(c)
		emit(part.table, part.name, c.rules)
	}
}

// bit returns our bit of the packet mark with its mask, as in 0x4000/0x4000.
func (r *Rules) bit() string {
	m := "0x" + strconv.FormatUint(uint64(r.host.Mark()), 16)
	return m + "/" + m
}

func (r *Rules) mark(c *chain) { c.rule("-j MARK --set-xmark", r.bit()) }

func (r *Rules) markNonLocal(c *chain) {
	for _, source := range r.localSources() {
		c.rule(source, "-j RETURN")
	}
	r.mark(c)
}

// localSources returns the words that match each kind of local source.
func (r *Rules) localSources() []string {
	var words []string
	for _, p := range r.host.LocalCIDRs {
		words = append(words, from(p))
	}
	for _, name := range r.host.LocalInterfaces {
		words = append(words, input(name))
	}
	return words
}

// input returns the words for an input interface; none for "*", which is all of them.
func input(name string) string {
	if name == "*" {
		return ""
	}
	if stem, isPrefix := strings.CutSuffix(name, "*"); isPrefix {
		name = stem + "+"
	}
	return "-i " + name
}

func (r *Rules) postrouting(c *chain) {
	const masquerade = "-j MASQUERADE --random-fully"
	c.rule("-m conntrack --ctstate DNAT", r.words.match(hairpinSet, "dst,dst,src"), masquerade)
	c.rule("-m mark ! --mark", r.bit(), "-j RETURN")
	_, mask, _ := strings.Cut(r.bit(), "/")
	c.rule("-j MARK --set-xmark 0x0/" + mask) // a tunnel would carry the mark on to the outer packet
	c.rule(masquerade)
}

// refusals sees new connections only. Those that were balanced are addressed to
// their endpoint by now and are none of its business.
func (r *Rules) refusals(c *chain) {
	w := r.words
	c.rule("-m conntrack --ctstate DNAT -j RETURN")
	if r.localhostNodePorts() {
		// route_localnet, which these need, lets neighbours reach 127.0.0.1.
		c.rule("! -s 127.0.0.0/8 -d 127.0.0.0/8 -m addrtype ! --src-type LOCAL -j DROP")
	}
	c.rule(w.match(firewalledSet, "dst,dst"), w.noMatch(rangesSet, "dst,dst,src"), "-j DROP")
	r.reject(c, "", w.match(rejectSet, "dst,dst"))
	c.rule(w.match(dropSet, "dst,dst"), "-j DROP")
	r.reject(c, "", w.match(vipsSet, "dst"))
	for _, p := range r.host.ServiceCIDRs {
		r.reject(c, to(p), w.noMatch(exemptSet, "dst"))
	}
}

func (r *Rules) reject(c *chain, dst, match string) {
	c.rule(dst, "-p tcp", match, "-j REJECT --reject-with tcp-reset")
	c.rule(dst, match, "-j REJECT --reject-with", r.words.refused)
}

// forward accepts what a policy of DROP would take from us: new connections that
// were marked, or whose endpoint says that they are ours, and what follows on a
// connection that was balanced. That its first packets came through says enough
// of the latter: its endpoint, and so our knowledge of it, may have left.
func (r *Rules) forward(c *chain) {
	if !r.forwardDrops {
		return
	}
	const accept = "-j ACCEPT"
	const balanced = "-m conntrack --ctstate DNAT"
	c.rule("-m conntrack --ctstate RELATED,ESTABLISHED", balanced, accept)
	c.rule("-m mark --mark", r.bit(), accept)
	c.rule(balanced, r.words.match(hairpinSet, "dst,dst,dst"), accept)
}

func (r *Rules) localhostNodePorts() bool {
	return r.host.LocalhostNodePorts && r.words.fam == proxier.IPv4
}

// nodePortAddrs returns the addresses that serve node ports.
func (r *Rules) nodePortAddrs() []netip.Addr {
	if !r.localhostNodePorts() {
		return r.host.NodePortAddrs
	}
	return append(slices.Clone(r.host.NodePortAddrs), netip.AddrFrom4([4]byte{127, 0, 0, 1}))
}

// checkHost refuses names of interfaces that would add words to a rule.
func checkHost(h *proxier.Host) error {
	for _, name := range h.LocalInterfaces {
		odd := func(r rune) bool { return harmless(r) != r && r != '@' }
		stem := strings.TrimSuffix(name, "*")
		if name == "" || len(name) > maxInterface || strings.ContainsFunc(stem, odd) {
			return fmt.Errorf("local interface %q: iptables cannot match such a name", name)
		}
	}
	return nil
}

// maxInterface is the longest name of an interface in bytes, IFNAMSIZ without its NUL.
const maxInterface = 15
