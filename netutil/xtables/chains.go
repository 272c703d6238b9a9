package xtables

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"svcproxy.dev/svcproxy/netutil/nft"
)

// ReadChains returns the given chains of one table, all of which must exist. With the nft
// variant the read is short; if another process commits meanwhile, the program starts over. Chains
// with rules that iptables cannot print are read from nf_tables.
func (t *Tool) ReadChains(ctx context.Context, table string, chains []string, prefix string) (*Table, error) {
	p := newParser(prefix)
	p.begin(table)
	if err := t.readChains(ctx, p, table, chains); err != nil {
		return nil, fmt.Errorf("reading %d chains of table %s: %w", len(chains), table, err)
	}
	return p.table, nil
}

// readChains has p read chains: all with one run of the program. A chain that it cannot print is read from nf_tables; where its
// error names no chain, each half of the list is read by itself.
func (t *Tool) readChains(ctx context.Context, p *parser, table string, chains []string) error {
	if len(chains) == 0 {
		return nil
	}
	lines, err := t.list(ctx, table, chains)
	refused := unprintable(err)
	switch {
	case err == nil:
		return p.lines(lines)
	case refused == nil || t.Variant != NFT:
		return t.nameHolder(err)
	case len(chains) == 1:
		return t.readNative(p, table, chains)
	}
	first, rest := chains[:len(chains)/2], chains[len(chains)/2:]
	if i := slices.Index(chains, refused[1]); i >= 0 {
		first, rest = chains[i:i+1], slices.Delete(slices.Clone(chains), i, i+1)
	}
	if err := t.readChains(ctx, p, table, first); err != nil {
		return err
	}
	return t.readChains(ctx, p, table, rest)
}

// unprintablePattern matches what programs of the nft variant say of rules that they do not
// understand. Some name a chain, some only a table.
var unprintablePattern = regexp.MustCompile("(?:chain `([^']*)' in )?table `[^']*' is incompatible")

// unprintable returns the match of unprintablePattern in an error; nil: any other error.
func unprintable(err error) []string {
	if err == nil {
		return nil
	}
	return unprintablePattern.FindStringSubmatch(err.Error())
}

// IsUnprintable reports whether a program refused to print, because other programs wrote
// rules that iptables does not understand.
func IsUnprintable(err error) bool { return unprintable(err) != nil }

// list returns the lines of "-S CHAIN" for each chain.
func (t *Tool) list(ctx context.Context, table string, chains []string) (lines []byte, err error) {
	var input bytes.Buffer
	fmt.Fprintf(&input, "*%s\n", table)
	for _, c := range chains {
		fmt.Fprintf(&input, "-S %s\n", c)
	}
	input.WriteString("COMMIT\n")
	return output(ctx, &input, t.restore, "--noflush", "-w", strconv.Itoa(lockWait))
}

// lines parses what list returns.
func (p *parser) lines(b []byte) error {
	err := scan(bytes.NewReader(b), p.listLine)
	p.flush()
	return err
}

// listLine parses a line of -S: "-N CHAIN", "-P CHAIN POLICY" or a rule.
func (p *parser) listLine(b []byte) error {
	rest := b[min(len("-A "), len(b)):]
	switch {
	case bytes.HasPrefix(b, []byte("-A ")):
		p.rule(b, rest)
	case bytes.HasPrefix(b, []byte("-N ")):
		p.declare(append(slices.Clone(rest), " -"...))
	case bytes.HasPrefix(b, []byte("-P ")):
		p.declare(rest)
	}
	return nil
}

// builtIn are the built-in chains of tables. iptables-nft creates each with the first rule that is
// written to it.
var builtIn = map[string][]string{
	"nat":      {"PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"},
	"filter":   {"INPUT", "FORWARD", "OUTPUT"},
	"mangle":   {"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"},
	"raw":      {"PREROUTING", "OUTPUT"},
	"security": {"INPUT", "FORWARD", "OUTPUT"},
}

// NewBuiltIn returns a table that has its built-in chains, with unknown policies, and no rules.
func NewBuiltIn(name string) *Table {
	t := NewTable()
	for _, chain := range builtIn[name] {
		t.Policies[chain] = ""
	}
	return t
}

// ReadNative is ReadChains for the nft variant without starting a program. Only rules that are
// no more than a jump have their text.
func (t *Tool) ReadNative(table string, chains []string, prefix string) (*Table, error) {
	p := newParser(prefix)
	p.begin(table)
	return p.table, t.readNative(p, table, chains)
}

// readNative has p read chains from nf_tables.
func (t *Tool) readNative(p *parser, table string, chains []string) (err error) {
	conn, err := nft.Dial()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	for _, chain := range chains {
		rules, err := conn.ChainRules(nft.Table{Family: t.family(), Name: table}, chain)
		if err != nil {
			return err
		}
		switch {
		case strings.HasPrefix(chain, string(p.prefix)):
			p.table.Chains[chain] = unprintableSum // it is to be written again
		case slices.Contains(builtIn[table], chain):
			p.table.Policies[chain] = "" // unknown
		}
		for _, r := range rules {
			p.nativeRule(chain, r)
		}
	}
	return nil
}
