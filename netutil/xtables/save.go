package xtables

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// A Sum is a checksum of the rules of a chain. It is valid in this process only.
type Sum uint64

var seed = maphash.MakeSeed()

// SumOf returns the sum of the rules of a chain: lines that begin with "-A NAME" and end in a newline.
func SumOf(rules []byte) Sum { return Sum(maphash.Bytes(seed, rules)) }

// A Table is what the kernel holds of one table.
type Table struct {
	Chains   map[string]Sum    // ours
	Policies map[string]string // of the built-in chains: "ACCEPT" or "DROP"

	// Jumps are the rules of other chains that jump to ours, by chain and in
	// order, without the leading "-A CHAIN ".
	Jumps map[string][]string

	// UserJumps are the positions of the jumps to UserChain, by chain.
	UserJumps map[string]Position

	// Ahead are the first maxAhead foreign rules before the last jump that may keep packets
	// from it, by chain, without the leading "-A CHAIN ". Those before the jump to UserChain
	// are in AheadOfUser.
	Ahead, AheadOfUser map[string][]string

	// NativeJumps are the chains of ours that rules jump to which iptables cannot
	// print or delete, by the chain of the rule.
	NativeJumps map[string][]string

	Foreign int // rules of other chains, without the jumps
}

// ReferencedBy returns the foreign chains that jump to a chain of ours, sorted; built-in
// ones only where iptables cannot delete the jump.
func (t *Table) ReferencedBy(name string) []string {
	var from []string
	for chain, rules := range t.Jumps {
		_, builtIn := t.Policies[chain]
		if !builtIn && slices.ContainsFunc(rules, func(r string) bool { return strings.HasSuffix(r, " "+name) }) {
			from = append(from, chain)
		}
	}
	for chain, targets := range t.NativeJumps {
		if slices.Contains(targets, name) && !slices.Contains(from, chain) {
			from = append(from, chain)
		}
	}
	slices.Sort(from)
	return from
}

// Merge adds the chains of u, none of which t has.
func (t *Table) Merge(u *Table) {
	maps.Copy(t.Chains, u.Chains)
	maps.Copy(t.Policies, u.Policies)
	maps.Copy(t.Jumps, u.Jumps)
	maps.Copy(t.UserJumps, u.UserJumps)
	maps.Copy(t.Ahead, u.Ahead)
	maps.Copy(t.AheadOfUser, u.AheadOfUser)
	maps.Copy(t.NativeJumps, u.NativeJumps)
	t.Foreign += u.Foreign
}

// NewTable returns a table without chains.
func NewTable() *Table {
	return &Table{
		Chains: map[string]Sum{}, Policies: map[string]string{}, Jumps: map[string][]string{},
		UserJumps: map[string]Position{}, NativeJumps: map[string][]string{},
		Ahead: map[string][]string{}, AheadOfUser: map[string][]string{},
	}
}

// UserChain is the chain in which Docker lets admins restrict forwarded traffic.
// Docker inserts its jump at the top of FORWARD, once, when it starts.
const UserChain = "DOCKER-USER"

// A Position is where a rule is in a chain.
type Position struct {
	Rules int // foreign ones up to it, itself included
	Jumps int // of ours, before it
}

// maxLine is the longest line of iptables-save that is read, in bytes.
const maxLine = 1 << 20

// Read returns what the kernel holds of a table, which the kernel creates if it does
// not exist. Chains whose names begin with prefix are ours.
func (t *Tool) Read(ctx context.Context, table, prefix string) (*Table, error) {
	tables, err := t.read(ctx, prefix, "-t", table)
	if err != nil {
		return nil, fmt.Errorf("reading table %s: %w", table, err)
	}
	if tables[table] == nil {
		return nil, fmt.Errorf("reading table %s: %s does not show it; was it created by something other than iptables?", table, t.save)
	}
	return tables[table], nil
}

// noNFTables matches what the programs of the nft variant print on a kernel without nf_tables.
var noNFTables = regexp.MustCompile(`(rule set generation id|initialize nft): (Invalid argument|Protocol not supported)`)

// ReadAll returns the existing tables, by name, and creates none. On a kernel
// that lacks the variant the error is errors.ErrUnsupported.
func (t *Tool) ReadAll(ctx context.Context, prefix string) (map[string]*Table, error) {
	tables, err := t.read(ctx, prefix)
	if err != nil && t.Variant == NFT && noNFTables.MatchString(err.Error()) {
		err = fmt.Errorf("%w: %w", errors.ErrUnsupported, err)
	}
	if err != nil {
		return nil, fmt.Errorf("reading tables: %w", err)
	}
	return tables, nil
}

func (t *Tool) read(ctx context.Context, prefix string, args ...string) (map[string]*Table, error) {
	var tables map[string]*Table
	err := run(ctx, nil, func(out io.Reader) (err error) {
		tables, err = parse(out, prefix)
		return err
	}, t.save, args...)
	return tables, err
}

// parse parses the output of iptables-save.
func parse(r io.Reader, prefix string) (map[string]*Table, error) {
	p := newParser(prefix)
	err := scan(r, p.line)
	p.flush()
	return p.tables, err
}

// scan calls each with the lines of r.
func scan(r io.Reader, each func(line []byte) error) error {
	s := bufio.NewScanner(r)
	s.Buffer(make([]byte, 64<<10), maxLine)
	for s.Scan() {
		if err := each(s.Bytes()); err != nil {
			return err
		}
	}
	return s.Err()
}

func newParser(prefix string) *parser {
	p := &parser{prefix: []byte(prefix), tables: map[string]*Table{}}
	p.hash.SetSeed(seed)
	return p
}

type parser struct {
	prefix []byte
	tables map[string]*Table
	table  *Table
	name   string // of table
	chain  string // the chain of ours whose rules are in hash; empty: none
	hash   maphash.Hash

	foreign map[string]int      // foreign rules so far, by chain
	ahead   map[string][]string // those that may keep packets from what follows, at most maxAhead
}

func (p *parser) line(b []byte) error {
	if len(b) == 0 || b[0] == '#' {
		return nil
	}
	if b[0] == '*' {
		p.flush()
		p.begin(string(b[1:]))
		return nil
	}
	if p.table == nil {
		return fmt.Errorf("unexpected line outside of a table: %q", b)
	}
	switch rest, isRule := bytes.CutPrefix(b, []byte("-A ")); {
	case isRule:
		p.rule(b, rest)
	case b[0] == ':':
		p.declare(b[1:])
	case string(b) != "COMMIT":
		return fmt.Errorf("unexpected line: %q", b)
	}
	return nil
}

// begin begins a table.
func (p *parser) begin(table string) {
	p.table = NewTable()
	p.tables[table], p.name = p.table, table
	p.foreign, p.ahead = map[string]int{}, map[string][]string{}
}

// declare parses a line such as ":INPUT ACCEPT [0:0]", without the colon. A chain of ours
// without rules has no other line.
func (p *parser) declare(b []byte) {
	name, rest, _ := bytes.Cut(b, []byte(" "))
	policy, _, _ := bytes.Cut(rest, []byte(" "))
	switch {
	case bytes.HasPrefix(name, p.prefix):
		p.table.Chains[string(name)] = SumOf(nil)
	case string(policy) != "-":
		p.table.Policies[string(name)] = string(policy)
	}
}

// rule parses a rule; rest is what follows "-A ".
func (p *parser) rule(line, rest []byte) {
	name, rule, _ := bytes.Cut(rest, []byte(" "))
	if !bytes.HasPrefix(name, p.prefix) {
		p.foreignRule(string(name), rule)
		return
	}
	if p.chain != string(name) {
		p.flush()
		p.chain = string(name)
	}
	p.hash.Write(line)
	p.hash.WriteByte('\n')
}

// foreignRule parses a rule of a chain that is not ours.
func (p *parser) foreignRule(chain string, rule []byte) {
	if jumpsTo(rule, p.prefix) {
		p.jump(chain, string(rule))
		return
	}
	p.table.Foreign++
	p.foreign[chain]++
	switch {
	case string(rule) == "-j "+UserChain:
		p.table.UserJumps[chain] = Position{Rules: p.foreign[chain], Jumps: len(p.table.Jumps[chain])}
		if before := p.ahead[chain]; before != nil {
			p.table.AheadOfUser[chain] = before
			delete(p.ahead, chain)
		}
	case overrules(p.name, rule):
		p.goesAhead(chain, string(rule))
	}
}

// jump takes in a jump to a chain of ours.
func (p *parser) jump(chain, rule string) {
	p.table.Jumps[chain] = append(p.table.Jumps[chain], rule)
	if before := p.ahead[chain]; before != nil {
		p.table.Ahead[chain] = slices.Clone(before)
	}
}

// goesAhead takes in a rule that may keep packets from the jumps after it.
func (p *parser) goesAhead(chain, rule string) {
	if len(p.ahead[chain]) < maxAhead {
		p.ahead[chain] = append(p.ahead[chain], rule)
	}
}

// flush completes the chain whose rules have been read.
func (p *parser) flush() {
	if p.chain != "" {
		p.table.Chains[p.chain] = Sum(p.hash.Sum64())
		p.hash.Reset()
		p.chain = ""
	}
}

// Save calls each with every line that iptables-save prints, for which no table is created
// in the nft variant. Its error ends the reading.
func (t *Tool) Save(ctx context.Context, each func(line []byte) error) error {
	err := run(ctx, nil, func(out io.Reader) error { return scan(out, each) }, t.save)
	if err != nil {
		return fmt.Errorf("reading what %s prints: %w", t.save, err)
	}
	return nil
}
