package layout

import (
	"crypto/sha256"
	"encoding/base32"
	"net/netip"
	"strconv"
	"strings"

	"svcproxy.dev/svcproxy/netutil/ipset"
	"svcproxy.dev/svcproxy/netutil/xtables"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// Prefix begins the names of all our chains, sets and lists of recent addresses.
const Prefix = "SVCP-"

// The chains whose names do not depend on services.
const (
	Services     = Prefix + "SERVICES"      // nat: root of the tree of addresses
	NodePorts    = Prefix + "NODEPORTS"     // nat: root of the tree of node ports
	MarkMasq     = Prefix + "MARK-MASQ"     // nat: masquerade this connection
	MarkNonLocal = Prefix + "MARK-NONLOCAL" // nat: likewise, unless its source is local
	Postrouting  = Prefix + "POSTROUTING"   // nat: masquerades
	Filter       = Prefix + "FILTER"        // filter: refuses new connections
	Forward      = Prefix + "FORWARD"       // filter: accepts balanced connections
	Strays       = Prefix + "STRAYS"        // filter: drops what would return to the router
)

// The sets, without the suffix of the family: both families share one namespace.
const (
	rangesSet     = Prefix + "RANGES"     // restricted frontends and their source ranges
	FirewalledSet = Prefix + "FIREWALLED" // restricted frontends
	rejectSet     = Prefix + "REJECT"     // frontends that refuse
	dropSet       = Prefix + "DROP"       // frontends that drop
	vipsSet       = Prefix + "VIPS"       // addresses whose other ports refuse
	placedSet     = Prefix + "PLACED"     // node ports on addresses of their own
	exemptSet     = Prefix + "EXEMPT"     // addresses of this host in service_cidrs, which do not
	hairpinSet    = Prefix + "HAIRPIN"    // targets that may reach themselves
	GrownSet      = Prefix + "GROWN"      // a larger version of another set while it is filled
)

// The chains and sets of ipvs mode only.
const (
	masqueradeChain = Prefix + "MASQUERADE" // nat: marks what IPVS will balance and nat must masquerade
	firewallChain   = Prefix + "FIREWALL"   // mangle: drops what IPVS must not see

	servedSet    = Prefix + "SERVED"   // frontends that IPVS balances
	boundSet     = Prefix + "BOUND"    // addresses on our device
	everyoneSet  = Prefix + "MASQ-ALL" // frontends, by the sources to masquerade
	nonLocalSet  = Prefix + "MASQ-NONLOCAL"
	processesSet = Prefix + "MASQ-HOST"
	silentSet    = Prefix + "DROP-HOST" // frontends that drop packets of host processes, too
)

// SharedSets are those of all modes, without the suffix of the family.
var SharedSets = []ipset.Set{
	{Name: rangesSet, Type: ipset.HashIPPortNet},
	{Name: FirewalledSet, Type: ipset.HashIPPort},
	{Name: rejectSet, Type: ipset.HashIPPort},
	{Name: dropSet, Type: ipset.HashIPPort},
	{Name: placedSet, Type: ipset.HashIPPort},
	{Name: exemptSet, Type: ipset.HashIP},
	{Name: hairpinSet, Type: ipset.HashIPPortIP},
}

// maxChain is the longest name of a chain in bytes: XT_EXTENSION_MAXNAMELEN
// without its NUL, <linux/netfilter/x_tables.h>.
const maxChain = 28

// hashed returns prefix and 16 letters, 80 bits of a hash of text.
func hashed(prefix, text string) string {
	sum := sha256.Sum256([]byte(text))
	return prefix + base32.StdEncoding.EncodeToString(sum[:10])
}

// A Dialect holds the differences between the families in the words of iptables.
type Dialect struct {
	fam     policy.Family
	Suffix  string // of the names of sets
	host    string // prefix length of a single address
	refused string // --reject-with
	mask    string // of a single address, as the match recent prints it
}

// Dialects has that of each family.
var Dialects = map[policy.Family]Dialect{
	policy.IPv4: {policy.IPv4, "-4", "/32", "icmp-port-unreachable", "255.255.255.255"},
	policy.IPv6: {policy.IPv6, "-6", "/128", "icmp6-port-unreachable", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"},
}

// Set returns the full name of a set.
func (d Dialect) Set(name string) string { return name + d.Suffix }

// OtherSuffix returns the suffix of the other family.
func (d Dialect) OtherSuffix() string {
	if d.fam == policy.IPv6 {
		return Dialects[policy.IPv4].Suffix
	}
	return Dialects[policy.IPv6].Suffix
}

// match returns a match that looks a packet up in a set, by "src" and "dst" as in sides.
func (d Dialect) match(name, sides string) string {
	return "-m set --match-set " + d.Set(name) + " " + sides
}

func (d Dialect) noMatch(name, sides string) string {
	return "-m set ! --match-set " + d.Set(name) + " " + sides
}

// from and to return the match for a source and a destination; empty for all addresses.
func from(p netip.Prefix) string { return side("-s ", p) }
func to(p netip.Prefix) string   { return side("-d ", p) }

func side(flag string, p netip.Prefix) string {
	if p.Bits() == 0 {
		return ""
	}
	return flag + prefixText(p)
}

func prefixText(p netip.Prefix) string {
	return addrText(p.Masked().Addr()) + "/" + strconv.Itoa(p.Bits())
}

// addrText returns an address as inet_ntop writes it, which is how netip does
// except for ::1.2.3.4, the addresses of ::/96 from ::0.1.0.0 on.
func addrText(a netip.Addr) string {
	a = a.WithZone("")
	if a.Is4() || a.Is4In6() || !v4Compatible.Contains(a) {
		return a.String()
	}
	b := a.As16()
	if b[12] == 0 && b[13] == 0 {
		return a.String()
	}
	return "::" + netip.AddrFrom4([4]byte(b[12:])).String()
}

var v4Compatible = netip.MustParsePrefix("::/96")

// comment returns a comment match. Whatever s holds, it adds no words or lines, and
// iptables-save prints it unchanged: names of services are DNS labels with a slash
// between them, which it always quotes.
func comment(s string) string {
	if len(s) > maxComment {
		s = s[:maxComment]
	}
	return `-m comment --comment "` + strings.Map(harmless, s) + `"`
}

// maxComment is below the 255 bytes of XT_MAX_COMMENT_LEN; a service port's name has 191 at most.
const maxComment = 200

func harmless(r rune) rune {
	switch {
	case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9', strings.ContainsRune("-_./:", r):
		return r
	}
	return '?'
}

// A chain builds the rules of one chain, as iptables-save prints them.
type chain struct {
	name  string
	rules []byte
}

// start begins another chain and reuses the memory.
func (c *chain) start(name string) { c.name, c.rules = name, c.rules[:0] }

// rule appends a rule of the given words, without empty ones.
func (c *chain) rule(words ...string) {
	c.rules = append(append(c.rules, "-A "...), c.name...)
	for _, w := range words {
		if w != "" {
			c.rules = append(append(c.rules, ' '), w...)
		}
	}
	c.rules = append(c.rules, '\n')
}

// An Emit receives a chain of a table. The rules are valid until it returns.
type Emit func(table, chain string, rules []byte)

// A Jump is a rule of a built-in chain that jumps to one of ours.
type Jump struct{ Table, Chain, Rule string }

// feature returns a feature that a rule of these words needs.
func feature(table, name, words string) xtables.Feature {
	return xtables.Feature{Name: name, Table: table, Words: strings.Fields(words)}
}

// A frame is what chains depend on besides services.
type frame struct {
	words  Dialect
	byIPVS bool // IPVS does the balancing
	host   policy.Host

	ipvsBalances bool // now, or until these rules are written
}
