package layout

import (
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/proxier/policy"
)

// hostProcess matches packets from this host itself.
const hostProcess = "-m addrtype --src-type LOCAL"

// newOnly matches new connections. Packets of established ones, of none (INVALID),
// and neighbour discovery (UNTRACKED) are never refused.
const newOnly = "-m conntrack --ctstate NEW"

// ofNone matches packets of no connection.
const ofNone = "-m conntrack --ctstate INVALID,UNTRACKED"

// dnatted matches packets of connections that the nat table balanced.
const dnatted = "-m conntrack --ctstate DNAT"

// hostChains emits the chains that depend on the host only. Tables are written in this order.
func (fr *frame) hostChains(emit Emit) {
	c := &chain{}
	put := func(table, name string, fill func(*chain)) {
		c.start(name)
		fill(c)
		emit(table, name, c.rules)
	}
	filter := func() {
		put("filter", Filter, fr.refusals)
		put("filter", Forward, fr.forward)
		put("filter", Strays, fr.strays)
	}
	if fr.byIPVS {
		filter() // first: what rules of iptables mode give up to IPVS must not be refused
		put("mangle", firewallChain, fr.beforeIPVS)
		put("nat", masqueradeChain, fr.markServed)
	}
	put("nat", MarkMasq, fr.mark)
	put("nat", MarkNonLocal, fr.markNonLocal)
	put("nat", Postrouting, fr.postrouting)
	if !fr.byIPVS {
		filter() // last: what the nat table balances is not refused
	}
}

// bit returns our bit of packet and connection marks with its mask, as in 0x4000/0x4000.
func (fr *frame) bit() string {
	m := "0x" + strconv.FormatUint(uint64(fr.host.Mark()), 16)
	return m + "/" + m
}

func (fr *frame) mark(c *chain) { c.rule("-j MARK --set-xmark", fr.bit()) }

func (fr *frame) markNonLocal(c *chain) {
	for _, source := range fr.localSources() {
		c.rule(source, "-j RETURN")
	}
	fr.mark(c)
}

// localSources returns a match for each kind of local source.
func (fr *frame) localSources() []string {
	var words []string
	for _, p := range fr.host.LocalCIDRs {
		words = append(words, from(p))
	}
	for _, name := range fr.host.LocalInterfaces {
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
func (fr *frame) postrouting(c *chain) {
	balanced := dnatted
	if fr.byIPVS {
		balanced = "" // all may be
	}
	c.rule(balanced, fr.words.match(hairpinSet, "dst,dst,src"), masquerade)
	c.rule("-m mark ! --mark", fr.bit(), "-j RETURN")
	unbalanced := "-m conntrack ! --ctstate DNAT"
	if fr.ipvsBalances { // which does not set that state
		unbalanced += " -m ipvs ! --ipvs"
	}
	c.rule(unbalanced, "-j RETURN")
	_, mask, _ := strings.Cut(fr.bit(), "/")
	c.rule("-j MARK --set-xmark 0x0/" + mask) // a tunnel would copy the mark to the outer packet
	c.rule(masquerade)
}

// neighbourToLocalhost matches what no process of this host sent to 127.0.0.1. The nat table sees such a packet before
// the kernel's routing, which drops it as a martian unless route_localnet is set, as node ports of localhost need.
const neighbourToLocalhost = "-d 127.0.0.0/8 -m addrtype ! --src-type LOCAL"

// refusals fills the chain for new connections. Those that were balanced have their
// endpoint as destination by now, and pass. So does what IPVS has balanced: a packet passes the
// filter table's OUTPUT on its way to its endpoint, like one of this host. Its
// connection gets our mark, by which FORWARD recognises the replies. While another
// mode takes over, a connection may not be marked yet, and only its first packet
// comes here.
func (fr *frame) refusals(c *chain) {
	w := fr.words
	c.rule(dnatted, "-j RETURN")
	if fr.localhostNodePorts() {
		c.rule("! -s 127.0.0.0/8", neighbourToLocalhost, "-j DROP") // route_localnet lets it in
	}
	w.firewall(c)
	if fr.ipvsBalances {
		c.rule(matchIPVS, "-j CONNMARK --set-xmark", fr.bit())
		c.rule(matchIPVS, "-j RETURN")
	}
	if fr.byIPVS { // and what it will balance
		c.rule(w.match(servedSet, "dst,dst"), "-j RETURN")
		c.rule(midstream, "-m addrtype --dst-type LOCAL -j RETURN")
	}
	w.reject(c, "", w.match(rejectSet, "dst,dst"))
	c.rule(w.match(dropSet, "dst,dst"), "-j DROP")
	w.reject(c, "", w.match(fr.refusedSet(), "dst"))
	for _, p := range fr.host.ServiceCIDRs {
		w.reject(c, to(p), w.noMatch(exemptSet, "dst"))
	}
}

// beforeIPVS drops what IPVS would balance or refuse.
func (fr *frame) beforeIPVS(c *chain) {
	fr.words.firewall(c)
	c.rule(fr.words.match(silentSet, "dst,dst"), hostProcess, "-j DROP")
}

// markServed marks what IPVS will balance and the nat table must masquerade. A
// host process that did not bind an address gets the VIP it connects to as its source, as
// that is an address of this host; no endpoint could reply to that.
func (fr *frame) markServed(c *chain) {
	w := fr.words
	c.rule(w.match(everyoneSet, "dst,dst"), "-j", MarkMasq)
	c.rule(w.match(nonLocalSet, "dst,dst"), "-j", MarkNonLocal)
	c.rule(w.match(processesSet, "dst,dst"), hostProcess, "-j", MarkMasq)
	c.rule(w.match(servedSet, "dst,dst"), w.match(boundSet, "src"), "-j", MarkMasq)
}

// midstream matches segments in the middle of a TCP connection. Where endpoints answer clients
// themselves, connection tracking sees one direction only, and takes them for new connections. What
// IPVS does not know of them, the host itself resets, which has the address.
const midstream = "-p tcp -m tcp ! --tcp-flags FIN,SYN,RST,ACK SYN"

// strays drops forwarded packets of no connection to addresses that routers send to this host: a
// router would send them back, until their TTL ends. New connections are refused by then.
func (fr *frame) strays(c *chain) {
	c.rule(fr.words.match(fr.refusedSet(), "dst"), "-j DROP")
	for _, p := range fr.host.ServiceCIDRs {
		c.rule(to(p), fr.words.noMatch(exemptSet, "dst"), "-j DROP")
	}
}

// firewall drops packets from outside the source ranges of their frontend.
func (d Dialect) firewall(c *chain) {
	c.rule(d.match(FirewalledSet, "dst,dst"), d.noMatch(rangesSet, "dst,dst,src"), "-j DROP")
}

func (d Dialect) reject(c *chain, dst, match string) {
	c.rule(dst, "-p tcp", match, "-j REJECT --reject-with tcp-reset")
	c.rule(dst, match, "-j REJECT --reject-with", d.refused)
}

// forward accepts balanced connections, which a policy of DROP or a rejecting rule
// would block. It is the connection mark: present from the first packet on, in both
// directions, with or without a reply yet, and after the endpoint has left; RELATED
// connections inherit it. Connections that other rules translate do not have it.
func (fr *frame) forward(c *chain) { c.rule("-m connmark --mark", fr.bit(), "-j ACCEPT") }

func (fr *frame) localhostNodePorts() bool {
	return fr.host.LocalhostNodePorts && fr.words.fam == policy.IPv4
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

// sharedJumps are those of all modes. What Filter refuses, Forward must not accept, so it comes after.
var sharedJumps = []Jump{
	{"nat", "PREROUTING", "-j " + Services},
	{"nat", "OUTPUT", "-j " + Services},
	{"nat", "POSTROUTING", "-j " + Postrouting},
	{"filter", "INPUT", newOnly + " -j " + Filter},
	{"filter", "FORWARD", newOnly + " -j " + Filter},
	{"filter", "FORWARD", "-j " + Forward},
	{"filter", "FORWARD", ofNone + " -j " + Strays},
	{"filter", "OUTPUT", newOnly + " -j " + Filter},
}

// matchIPVS matches packets that IPVS balances.
const matchIPVS = "-m ipvs --ipvs"
