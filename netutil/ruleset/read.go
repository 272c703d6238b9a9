package ruleset

import (
	"context"
	"errors"
	"fmt"
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

// Read reads the rules. What cannot be read is named, and does not keep the rest from being
// read. So is it that rules of nf_tables changed each time they were read.
func Read(ctx context.Context, o Options) (rs *Ruleset) {
	isStable := stable(func() bool {
		rs = &Ruleset{}
		(&reader{Options: o, Ruleset: rs}).read(ctx)
		return ctx.Err() == nil
	})
	if !isStable {
		rs.Unread = append(rs.Unread, "rules of nf_tables: they changed each time they were read")
	}
	rs.Sort()
	return rs
}

// readings is how often is read what changes meanwhile.
const readings = 4

// stable calls read again where something was committed to nf_tables meanwhile, which the
// kernel tells of a listing too (NLM_F_DUMP_INTR), as long as read returns true. It reports
// whether the last reading can be relied on, or that is not known.
func stable(read func() bool) bool {
	for range readings {
		before, _ := nft.CurrentGeneration() // 0: it is not known
		if !read() {
			return true
		}
		if after, _ := nft.CurrentGeneration(); after == before {
			return true
		}
	}
	return false
}

// A reader reads all rules once.
type reader struct {
	Options
	*Ruleset
	printed saveReader // what iptables-nft prints of tables of nf_tables; zero: nothing
}

func (r *reader) read(ctx context.Context) {
	ofTools, ofKernel := r.MaxRules, r.MaxRules
	r.readTools(ctx, &ofTools)
	if err := r.readNFT(ctx, &ofKernel); err != nil && !errors.Is(err, errors.ErrUnsupported) {
		r.unread("rules of nf_tables: %v", err)
	}
	r.Stopped = ofTools < 0 || ofKernel < 0
}

func (r *reader) unread(format string, args ...any) {
	r.Unread = append(r.Unread, fmt.Sprintf(format, args...))
}

// readTools reads the rules of legacy iptables, and what iptables-nft prints. left is how many rules it may read.
func (r *reader) readTools(ctx context.Context, left *int) {
	hasLegacy := len(xtables.LegacyTables(r.IPv6)) > 0
	tools, err := xtables.Installed(ctx, r.IPv6)
	if err != nil && hasLegacy {
		r.unread("rules of legacy iptables: %v", err)
	}
	for _, t := range tools {
		isLegacy := t.Variant == xtables.Legacy
		if isLegacy && !hasLegacy {
			continue
		}
		text := saveReader{origin: t.String(), skip: r.Prefix, left: left, tables: map[string]map[string][]Rule{}}
		switch err := t.Save(ctx, text.line); {
		case isLegacy && err != nil:
			r.unread("rules of %s: %v", t, err)
		case isLegacy:
			for _, b := range text.bases {
				b.Partial = *left < 0
			}
			r.Bases = append(r.Bases, text.bases...)
		case err == nil: // otherwise the kernel is asked only
			r.printed = text
		}
	}
}

// tracePrefix begins the names of tables that svcproxy trace makes.
const tracePrefix = "svcproxy-trace-"

// readNFT reads the tables of nf_tables, also those that bear a name of iptables: iptables prints neither
// the chains that hook otherwise than its own nor all that rules match. The kernel lists chains by table, the one
// that was made first before others. left is how many rules it may read.
func (r *reader) readNFT(ctx context.Context, left *int) error {
	conn, err := nftables.New()
	if err != nil {
		return err
	}
	chains, err := conn.ListChains()
	if err != nil {
		return err
	}
	r.reportIngress(chains)
	families := map[nftables.TableFamily]string{nftables.TableFamilyINet: "inet", nftables.TableFamilyIPv4: "ip"}
	if r.IPv6 {
		families = map[nftables.TableFamily]string{nftables.TableFamilyINet: "inet", nftables.TableFamilyIPv6: "ip6"}
	}
	tables := map[string]map[string][]Rule{}
	for i, c := range chains {
		family, created := families[c.Table.Family], uint64(i)+1
		name := family + " " + quoted(c.Table.Name)
		switch {
		case family != "" && family != "inet" && c.Table.Name == r.OwnTable:
			r.Own = created
			continue
		case family == "", c.Hooknum == nil || int(*c.Hooknum) >= len(hooks), strings.HasPrefix(c.Table.Name, tracePrefix), c.Table.Name == nft.HooksTable:
			continue // the last two are ours, and drop nothing
		}
		rules, done := tables[name]
		if !done {
			if rules, err = r.rules(ctx, c.Table, left); err != nil {
				return fmt.Errorf("table %s: %w", name, err)
			}
			tables[name] = rules
		}
		if rules != nil {
			b := r.base(c, name, created)
			b.Chains, b.Partial = rules, *left < 0
			r.Bases = append(r.Bases, b)
		}
	}
	return nil
}

// reportIngress names chains that packets meet before all hooks, which are not looked at.
func (r *reader) reportIngress(chains []*nftables.Chain) {
	const ingress, most = 5, 8 // NF_INET_INGRESS
	var names []string
	for _, c := range chains {
		family := c.Table.Family
		if c.Hooknum != nil && (family == nftables.TableFamilyNetdev || family == nftables.TableFamilyINet && *c.Hooknum == ingress) {
			names = append(names, quoted(c.Table.Name)+" "+quoted(c.Name))
		}
	}
	if len(names) > most {
		names = append(names[:most], "and more")
	}
	if len(names) > 0 {
		r.unread("chains of interfaces (ingress, egress) are not looked at: %s", strings.Join(names, ", "))
	}
}

// text returns what iptables-nft prints of a table, by chain; nil: it does not print it.
func (r *reader) text(t *nftables.Table) map[string][]Rule {
	if t.Family == nftables.TableFamilyINet {
		return nil
	}
	return r.printed.tables[t.Name]
}

// base returns a chain that has a hook. Of those of iptables it is not known which of two was made first.
func (r *reader) base(c *nftables.Chain, table string, created uint64) *Base {
	b := &Base{
		Origin: table + " " + quoted(c.Name), Chain: c.Name, Type: string(c.Type), Hook: hooks[*c.Hooknum],
		Drops: c.Policy != nil && *c.Policy == nftables.ChainPolicyDrop, Created: created,
	}
	if c.Priority != nil {
		b.Priority = int(*c.Priority)
	}
	if xt := builtIn(c.Table.Name, c.Name); xt != nil && r.text(c.Table) != nil && xt.Hook == b.Hook && xt.Priority == b.Priority {
		b.Origin, b.Created = r.printed.origin+" "+c.Table.Name+" "+c.Name, 0
	}
	return b
}

// errStop ends a listing before its end.
var errStop = errors.New("enough was read")

// rules returns the rules of a table, by chain, as far as left lasts; nil: packets do not meet the table.
func (r *reader) rules(ctx context.Context, t *nftables.Table, left *int) (map[string][]Rule, error) {
	conn, err := nft.Dial()
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	table, sets, rules, text := nft.Table{Family: byte(t.Family), Name: t.Name}, setsOf(t), map[string][]Rule{}, r.text(t)
	if _, dormant, err := conn.Lookup(table); err != nil || dormant {
		return nil, err
	}
	err = conn.ScanRules(table, func(chain string, rule nft.ListedRule) error {
		if text != nil && r.Prefix != "" && strings.HasPrefix(chain, r.Prefix) {
			return ctx.Err() // of ours
		}
		if *left--; *left < 0 {
			return errStop
		}
		rules[chain] = append(rules[chain], &nftRule{v6: r.IPv6, exprs: rule.Exprs, sets: sets})
		return ctx.Err()
	})
	if errors.Is(err, errStop) {
		err = nil
	}
	for chain, list := range text {
		if len(list) == len(rules[chain]) {
			for i := range list {
				rules[chain][i] = rules[chain][i].(*nftRule).as(list[i])
			}
		}
	}
	return rules, err
}

// printable are the expressions of which iptables prints what they match and do.
var printable = []string{"match", "target", "counter", "immediate", "cmp", "range", "bitwise", "limit", "log", "meta", "payload"}

// as returns the rule as iptables prints it. The kernel says what it matches, except for what modules of iptables do.
// Its save leaves out expressions that it does not make itself, such as the lookup in a set of another program.
func (r *nftRule) as(text Rule) Rule {
	ofModules := false
	for _, e := range r.exprs {
		if !slices.Contains(printable, e.Name) {
			return r
		}
		ofModules = ofModules || e.Name == "match" || e.Name == "target"
	}
	if ofModules {
		return text
	}
	r.words = text.String()
	return r
}

// maxElements is of how large sets the elements are looked at.
const maxElements = 20_000

// setsOf returns what reads the sets of a table, each when a rule first asks for it; nil: it could not be read, is
// too large, or changed each time.
func setsOf(t *nftables.Table) func(name string) *nftSet {
	known := map[string]*nftSet{}
	return func(name string) *nftSet {
		set, done := known[name]
		if !done && !stable(func() bool { set = readSet(t, name); return set != nil }) {
			set = nil
		}
		known[name] = set
		return set
	}
}

func readSet(t *nftables.Table, name string) *nftSet {
	lib, err := nftables.New()
	if err != nil {
		return nil
	}
	s, err := lib.GetSetByName(t, name)
	if err != nil {
		return nil
	}
	conn, err := nft.Dial()
	if err != nil {
		return nil
	}
	defer conn.Close()
	var list []*element
	err = conn.ScanRaw(nft.Table{Family: byte(t.Family), Name: t.Name}, name, func(attrs []byte) error {
		if len(list) == maxElements {
			return errStop
		}
		list = append(list, decodeElement(attrs))
		return nil
	})
	if err != nil {
		return nil
	}
	return newSet(s.Interval && !s.Concatenation, list)
}
