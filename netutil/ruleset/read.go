package ruleset

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"os"
	"slices"
	"strings"

	"github.com/google/nftables"

	"svcproxy.dev/svcproxy/netutil/nft"
	"svcproxy.dev/svcproxy/netutil/xtables"
)

// Options say what is read, and what is not looked into because it is ours.
type Options struct {
	IPv6     bool
	OwnTable string // of nf_tables; empty: none
	Prefix   string // begins the names of our chains of iptables
	MaxRules int    // how many rules are read at most
}

// A Ruleset is what there is for packets of one family.
type Ruleset struct {
	Bases   []*Base  // by hook and priority
	Own     uint64   // when our table was created, as Base.Created; 0: there is none
	Stopped bool     // MaxRules was reached: there are more
	Unread  []string // what could not be read, and why
}

// A budget is how many more rules are read.
type budget struct{ left int }

func (b *budget) take() bool {
	b.left--
	return b.left >= 0
}

// Read reads the rules. What cannot be read is named, and does not keep the rest from being
// read. So is it that rules of nf_tables changed each time they were read.
func Read(ctx context.Context, o Options) (rs *Ruleset) {
	if !stable(func() bool { rs = readOnce(ctx, o); return ctx.Err() == nil }) {
		rs.Unread = append(rs.Unread, "rules of nf_tables: they changed each time they were read")
	}
	return rs
}

func readOnce(ctx context.Context, o Options) *Ruleset {
	rs, limit, ofTools := &Ruleset{}, &budget{o.MaxRules}, &budget{o.MaxRules}
	text := rs.readTools(ctx, o, ofTools)
	if err := rs.readNFT(ctx, o, limit, text); err != nil && !errors.Is(err, errors.ErrUnsupported) {
		rs.Unread = append(rs.Unread, fmt.Sprintf("rules of nf_tables: %v", err))
	}
	rs.Stopped = ofTools.left < 0 || limit.left < 0
	rs.Sort()
	return rs
}

// A printed is what iptables-nft prints of tables of nf_tables: the rules of their chains, by table.
type printed struct {
	tool   string
	tables map[string]map[string][]Rule
}

// readTools reads the rules of legacy iptables, and returns what iptables-nft prints.
func (rs *Ruleset) readTools(ctx context.Context, o Options, limit *budget) (text printed) {
	tools, err := xtables.Installed(ctx, o.IPv6)
	if err != nil {
		if legacyTables(o.IPv6) {
			rs.Unread = append(rs.Unread, fmt.Sprintf("rules of legacy iptables: %v", err))
		}
		return text
	}
	for _, t := range tools {
		if t.Variant == xtables.Legacy && !legacyTables(o.IPv6) {
			continue
		}
		r := newSaveReader(t.String(), o.Prefix, limit)
		err := t.Save(ctx, r.line)
		switch {
		case t.Variant == xtables.NFT && err == nil:
			text = printed{t.String(), r.tables}
		case t.Variant == xtables.NFT: // the kernel is asked for them
		case err != nil:
			rs.Unread = append(rs.Unread, fmt.Sprintf("rules of %s: %v", t, err))
		default:
			rs.addPrinted(r.bases, limit)
		}
	}
	return text
}

func (rs *Ruleset) addPrinted(bases []*Base, limit *budget) {
	for _, b := range bases {
		b.Partial = limit.left < 0
	}
	rs.Bases = append(rs.Bases, bases...)
}

// legacyTables reports whether the kernel has tables of legacy iptables: asking for them
// with the program would create them.
func legacyTables(v6 bool) bool {
	name := "/proc/thread-self/net/ip_tables_names"
	if v6 {
		name = "/proc/thread-self/net/ip6_tables_names"
	}
	b, err := os.ReadFile(name)
	return err == nil && len(strings.Fields(string(b))) > 0
}

// tracePrefix begins the names of tables that svcproxy trace makes.
const tracePrefix = "svcproxy-trace-"

var hookNames = map[nftables.ChainHook]string{0: "prerouting", 1: "input", 2: "forward", 3: "output", 4: "postrouting"}

// readNFT reads the tables of nf_tables, also those that bear a name of iptables: iptables prints neither
// the chains that hook otherwise than its own nor all that rules match. Of rules that it may have made,
// the text says more.
func (rs *Ruleset) readNFT(ctx context.Context, o Options, limit *budget, text printed) error {
	conn, err := nftables.New(nftables.AsLasting())
	if err != nil {
		return err
	}
	defer conn.CloseLasting()
	family, name := nftables.TableFamilyIPv4, "ip"
	if o.IPv6 {
		family, name = nftables.TableFamilyIPv6, "ip6"
	}
	tables, err := conn.ListTables()
	if err != nil {
		return err
	}
	chains, err := conn.ListChains()
	if err != nil {
		return err
	}
	rs.noteIngress(chains)
	for i, t := range tables {
		switch {
		case t.Family == family && t.Name == o.OwnTable:
			rs.Own = uint64(i) + 1
			continue
		case strings.HasPrefix(t.Name, tracePrefix), t.Name == nft.HooksTable:
			continue // of ours: it drops nothing
		case t.Family != family && t.Family != nftables.TableFamilyINet, isDormant(t):
			continue
		}
		r := tableReader{Options: o, Table: t, family: "inet", created: uint64(i) + 1, limit: limit}
		if t.Family == family {
			r.family, r.tool, r.text = name, text.tool, text.tables[t.Name]
		}
		if err := r.read(ctx, rs, chains); err != nil {
			return fmt.Errorf("table %s %s: %w", r.family, t.Name, err)
		}
	}
	return nil
}

// noteIngress names chains that packets meet before all hooks, which are not looked at.
func (rs *Ruleset) noteIngress(chains []*nftables.Chain) {
	const ingress, most = 5, 8 // NF_INET_INGRESS
	var names []string
	for _, c := range chains {
		netdev := c.Table.Family == nftables.TableFamilyNetdev
		if c.Hooknum != nil && (netdev || c.Table.Family == nftables.TableFamilyINet && *c.Hooknum == ingress) {
			names = append(names, quoted(c.Table.Name)+" "+quoted(c.Name))
		}
	}
	if len(names) > most {
		names = append(names[:most], "and more")
	}
	if len(names) > 0 {
		rs.Unread = append(rs.Unread, "chains of interfaces (ingress, egress) are not looked at: "+strings.Join(names, ", "))
	}
}

// isDormant reports whether packets do not meet a table: NFT_TABLE_F_DORMANT,
// <linux/netfilter/nf_tables.h>. The library takes the flags in the order of the host.
func isDormant(t *nftables.Table) bool {
	const dormant = 1
	return (t.Flags|bits.ReverseBytes32(t.Flags))&dormant != 0
}

// A tableReader reads one table of nf_tables.
type tableReader struct {
	Options
	*nftables.Table
	family  string // of the table, as nft names it
	created uint64
	limit   *budget

	tool string
	text map[string][]Rule // that the tool prints of the table, by chain; nil: it does not print the table
}

// read adds the chains that have a hook.
func (r *tableReader) read(ctx context.Context, rs *Ruleset, chains []*nftables.Chain) error {
	own := slices.DeleteFunc(slices.Clone(chains), func(c *nftables.Chain) bool {
		return c.Table.Name != r.Name || c.Table.Family != r.Family || c.Hooknum == nil || hookNames[*c.Hooknum] == ""
	})
	if len(own) == 0 {
		return nil
	}
	rules, err := r.rules(ctx)
	if err != nil {
		return err
	}
	for _, c := range own {
		rs.Bases = append(rs.Bases, r.base(c, rules))
	}
	return nil
}

// base returns a chain that has a hook. Of those of iptables it is not known which of two was made first.
func (r *tableReader) base(c *nftables.Chain, rules map[string][]Rule) *Base {
	b := &Base{
		Origin: r.family + " " + quoted(r.Name) + " " + quoted(c.Name), Chain: c.Name, Type: string(c.Type), Hook: hookNames[*c.Hooknum],
		Drops: c.Policy != nil && *c.Policy == nftables.ChainPolicyDrop, Created: r.created, Chains: rules, Partial: r.limit.left < 0,
	}
	if c.Priority != nil {
		b.Priority = int(*c.Priority)
	}
	if r.text != nil && isBuiltIn(r.Name, b) {
		b.Origin, b.Created = r.tool+" "+r.Name+" "+c.Name, 0
	}
	return b
}

// errStop ends a listing before its end.
var errStop = errors.New("enough was read")

// rules returns the rules of the table, by chain, as far as the budget lasts.
func (r *tableReader) rules(ctx context.Context) (map[string][]Rule, error) {
	conn, err := nft.Dial()
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	sets, rules, otherwise := &setReader{table: r.Table, read: map[string]*nftSet{}}, map[string][]Rule{}, map[string]bool{}
	err = conn.ScanRules(nft.Table{Family: byte(r.Table.Family), Name: r.Name}, func(chain string, exprs []byte) error {
		switch {
		case r.text != nil && r.Prefix != "" && strings.HasPrefix(chain, r.Prefix):
			return ctx.Err() // of ours
		case !r.limit.take():
			return errStop
		}
		list := decodeRule(byte(r.Table.Family), exprs)
		otherwise[chain] = otherwise[chain] || !mayBePrinted(list, r.IPv6)
		rules[chain] = append(rules[chain], &nftRule{v6: r.IPv6, exprs: list, sets: sets.get})
		return ctx.Err()
	})
	if errors.Is(err, errStop) {
		err = nil
	}
	for chain, list := range r.text {
		if !otherwise[chain] && len(list) == len(rules[chain]) {
			rules[chain] = list
		}
	}
	return rules, err
}

// maxElements is of how large sets the elements are looked at.
const maxElements = 20_000

// A setReader reads the sets of a table, each when a rule asks for it.
type setReader struct {
	table *nftables.Table
	list  map[string]*nftables.Set // nil: not read yet
	read  map[string]*nftSet
}

// get returns a set; nil: it could not be read, or is too large.
func (r *setReader) get(name string) *nftSet {
	if r.list == nil {
		r.list = listSets(r.table)
	}
	s, done := r.read[name]
	if !done && r.list[name] != nil {
		s = readSet(r.list[name])
		r.read[name] = s
	}
	return s
}

func listSets(t *nftables.Table) map[string]*nftables.Set {
	sets := map[string]*nftables.Set{}
	conn, err := nftables.New() // that of Read is closed by now
	if err != nil {
		return sets
	}
	list, err := conn.GetSets(t)
	if err != nil {
		return sets
	}
	for _, s := range list {
		sets[s.Name] = s
	}
	return sets
}

// readSet reads the elements of a set, up to one too many; nil: it could not be read, or changed each time.
func readSet(s *nftables.Set) (set *nftSet) {
	if !stable(func() bool { set = readElements(s); return set != nil }) {
		return nil
	}
	return set
}

func readElements(s *nftables.Set) *nftSet {
	conn, err := nft.Dial()
	if err != nil {
		return nil
	}
	defer conn.Close()
	var elements []nftables.SetElement
	err = conn.ScanRaw(nft.Table{Family: byte(s.Table.Family), Name: s.Table.Name}, s.Name, func(attrs []byte) error {
		if len(elements) == maxElements {
			return errStop
		}
		elements = append(elements, decodeElement(attrs))
		return nil
	})
	if err != nil {
		return nil
	}
	return newSet(s, elements)
}
