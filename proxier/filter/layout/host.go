package layout

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/proxier/policy"
)

// A Jump is a rule of a built-in chain that jumps to one of ours.
type Jump struct{ Table, Chain, Rule string }

// newOnly matches new connections. Packets of established ones, of none (INVALID),
// and neighbour discovery (UNTRACKED) are never refused.
const newOnly = "-m conntrack --ctstate NEW"

// ofNone matches packets of no connection.
const ofNone = "-m conntrack --ctstate INVALID,UNTRACKED"

// dnatted matches packets of connections that the nat table balanced.
const dnatted = "-m conntrack --ctstate DNAT"

// hostChains emits the chains that depend on the host only.
func (r *Rules) hostChains(emit Emit) {
	c := &chain{}
	for _, h := range r.layout.chains {
		c.start(h.name)
		h.fill(r, c)
		emit(h.table, h.name, c.rules)
	}
}

// bit returns our bit of packet and connection marks with its mask, as in 0x4000/0x4000.
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

// localSources returns a match for each kind of local source.
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

// input returns the match for an input interface; empty for "*", which is all of them.
func input(name string) string {
	if name == "*" {
		return ""
	}
	if stem, isPrefix := strings.CutSuffix(name, "*"); isPrefix {
		name = stem + "+"
	}
	return "-i " + name
}

// masquerade is the target that replaces a source address.
const masquerade = "-j MASQUERADE --random-fully"

// postrouting masquerades marked packets that were balanced, and those of an endpoint to itself.
// A mark that has our bit by chance, as of a tunnel's packet, means nothing, and stays.
func (r *Rules) postrouting(c *chain) {
	c.rule(r.layout.balanced, r.words.match(hairpinSet, "dst,dst,src"), masquerade)
	c.rule("-m mark ! --mark", r.bit(), "-j RETURN")
	unbalanced := "-m conntrack ! --ctstate DNAT"
	if r.ipvsBalances { // which does not set that state
		unbalanced += " -m ipvs ! --ipvs"
	}
	c.rule(unbalanced, "-j RETURN")
	_, mask, _ := strings.Cut(r.bit(), "/")
	c.rule("-j MARK --set-xmark 0x0/" + mask) // a tunnel would copy the mark to the outer packet
	c.rule(masquerade)
}

// neighbourToLocalhost matches what no process of this host sent to 127.0.0.1. The nat table sees such a packet before
// the kernel's routing, which drops it as a martian unless route_localnet is set, as node ports of localhost need.
const neighbourToLocalhost = "-d 127.0.0.0/8 -m addrtype ! --src-type LOCAL"

// refusals fills the chain for new connections. Those that were balanced have their
// endpoint as destination by now, and pass.
func (r *Rules) refusals(c *chain) {
	w := r.words
	c.rule(dnatted, "-j RETURN")
	if r.localhostNodePorts() {
		c.rule("! -s 127.0.0.0/8", neighbourToLocalhost, "-j DROP") // route_localnet lets it in
	}
	r.firewall(c)
	r.layout.passServed(r, c)
	r.reject(c, "", w.match(rejectSet, "dst,dst"))
	c.rule(w.match(dropSet, "dst,dst"), "-j DROP")
	r.reject(c, "", w.match(r.layout.refused.name, "dst"))
	for _, p := range r.host.ServiceCIDRs {
		r.reject(c, to(p), w.noMatch(exemptSet, "dst"))
	}
}

// strays drops forwarded packets of no connection to addresses that routers send to this host: a
// router would send them back, until their TTL ends. New connections are refused by then.
func (r *Rules) strays(c *chain) {
	c.rule(r.words.match(r.layout.refused.name, "dst"), "-j DROP")
	for _, p := range r.host.ServiceCIDRs {
		c.rule(to(p), r.words.noMatch(exemptSet, "dst"), "-j DROP")
	}
}

// firewall drops packets from outside the source ranges of their frontend.
func (r *Rules) firewall(c *chain) {
	c.rule(r.words.match(FirewalledSet, "dst,dst"), r.words.noMatch(rangesSet, "dst,dst,src"), "-j DROP")
}

func (r *Rules) reject(c *chain, dst, match string) {
	c.rule(dst, "-p tcp", match, "-j REJECT --reject-with tcp-reset")
	c.rule(dst, match, "-j REJECT --reject-with", r.words.refused)
}

// markConnection marks a balanced connection as ours.
func (r *Rules) markConnection(c *chain) { c.rule("-j CONNMARK --set-xmark", r.bit()) }

// forward accepts balanced connections, which a policy of DROP or a rejecting rule
// would block. It is the connection mark: present from the first packet on, in both
// directions, with or without a reply yet, and after the endpoint has left; RELATED
// connections inherit it. Connections that other rules translate do not have it.
func (r *Rules) forward(c *chain) { c.rule("-m connmark --mark", r.bit(), "-j ACCEPT") }

func (r *Rules) localhostNodePorts() bool {
	return r.host.LocalhostNodePorts && r.words.fam == policy.IPv4
}

// nodePortAddrs returns the addresses that serve node ports without addresses of their own.
func (r *Rules) nodePortAddrs() []netip.Addr {
	return r.host.Addrs(&policy.Frontend{Key: policy.FrontendKey{Kind: policy.NodePort}})
}

// checkHost rejects names of interfaces that would add words to a rule.
func checkHost(h *policy.Host) error {
	for _, name := range h.LocalInterfaces {
		invalid := func(r rune) bool { return harmless(r) != r && r != '@' }
		stem := strings.TrimSuffix(name, "*")
		if name == "" || len(name) >= unix.IFNAMSIZ || strings.ContainsFunc(stem, invalid) {
			return fmt.Errorf("local interface %q: iptables cannot match such a name", name)
		}
	}
	return nil
}
