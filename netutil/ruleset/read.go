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
	rs, limit := &Ruleset{}, &budget{o.MaxRules}
	byText := rs.readTools(ctx, o, limit)
	if err := rs.readNFT(ctx, o, limit, byText); err != nil && !errors.Is(err, errors.ErrUnsupported) {
		rs.Unread = append(rs.Unread, fmt.Sprintf("rules of nf_tables: %v", err))
	}
	rs.Stopped = limit.left < 0
	rs.Sort()
	return rs
}

// readTools reads what iptables shows, and returns which tables of nf_tables that were.
func (rs *Ruleset) readTools(ctx context.Context, o Options, limit *budget) map[string]bool {
	tools, err := xtables.Installed(ctx, o.IPv6)
	if err != nil {
		if legacyTables(o.IPv6) {
			rs.Unread = append(rs.Unread, fmt.Sprintf("rules of legacy iptables: %v", err))
		}
		return nil
	}
	byText := map[string]bool{}
	for _, t := range tools {
		if t.Variant == xtables.Legacy && !legacyTables(o.IPv6) {
			continue
		}
		r := newSaveReader(t.String(), o.Prefix, limit)
		if err := t.Save(ctx, r.line); err != nil {
			rs.Unread = append(rs.Unread, fmt.Sprintf("rules of %s: %v", t, err))
			continue
		}
		for _, b := range r.bases {
			b.Partial = limit.left < 0
		}
		rs.Bases = append(rs.Bases, r.bases...)
		if t.Variant == xtables.NFT {
			byText = r.seen
		}
	}
	return byText
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

// readNFT reads the tables that byText does not have.
func (rs *Ruleset) readNFT(ctx context.Context, o Options, limit *budget, byText map[string]bool) error {
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
		case t.Family == family && byText[t.Name], t.Family != family && t.Family != nftables.TableFamilyINet, isDormant(t):
			continue
		}
		of := name
		if t.Family == nftables.TableFamilyINet {
			of = "inet"
		}
		if err := rs.readTable(ctx, t, of, uint64(i)+1, o.IPv6, chains, limit); err != nil {
			return fmt.Errorf("table %s %s: %w", of, t.Name, err)
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

// readTable reads one table, if any of its chains has a hook.
func (rs *Ruleset) readTable(ctx context.Context, t *nftables.Table, family string, at uint64, v6 bool, chains []*nftables.Chain, limit *budget) error {
	own := slices.DeleteFunc(slices.Clone(chains), func(c *nftables.Chain) bool { return c.Table.Name != t.Name || c.Table.Family != t.Family })
	if !slices.ContainsFunc(own, func(c *nftables.Chain) bool { return c.Hooknum != nil }) {
		return nil
	}
	rules, err := readRules(ctx, t, v6, limit)
	if err != nil {
		return err
	}
	for _, c := range own {
		if c.Hooknum == nil || hookNames[*c.Hooknum] == "" {
			continue
		}
		b := &Base{
			Origin: family + " " + quoted(t.Name) + " " + quoted(c.Name), Chain: c.Name, Type: string(c.Type), Hook: hookNames[*c.Hooknum],
			Drops: c.Policy != nil && *c.Policy == nftables.ChainPolicyDrop, Created: at, Chains: rules, Partial: limit.left < 0,
		}
		if c.Priority != nil {
			b.Priority = int(*c.Priority)
		}
		rs.Bases = append(rs.Bases, b)
	}
	return nil
}

// errStop ends a listing before its end.
var errStop = errors.New("enough was read")

// readRules reads the rules of a table, by chain, as far as the budget lasts.
func readRules(ctx context.Context, t *nftables.Table, v6 bool, limit *budget) (map[string][]Rule, error) {
	conn, err := nft.Dial()
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	sets, rules := &setReader{table: t, read: map[string]*nftSet{}}, map[string][]Rule{}
	err = conn.ScanRules(nft.Table{Family: byte(t.Family), Name: t.Name}, func(chain string, exprs []byte) error {
		if !limit.take() {
			return errStop
		}
		rules[chain] = append(rules[chain], &nftRule{v6: v6, exprs: decodeRule(byte(t.Family), exprs), sets: sets.get})
		return ctx.Err()
	})
	if errors.Is(err, errStop) {
		err = nil
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
