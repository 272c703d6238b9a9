package xtables

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// A Script is what one run of iptables-restore does. Each table of it is changed at once or not at all.
type Script struct {
	tables []*section
}

type section struct {
	name                                        string
	chains                                      map[string]bool // set or removed
	sets                                        []filled
	removed                                     []string
	unlink, early, link, declare, rules, remove bytes.Buffer // in the order of the input
}

// A filled chain has the rules between two places of section.rules.
type filled struct {
	name     string
	from, to int
}

func (s *Script) section(table string) *section {
	for _, sec := range s.tables {
		if sec.name == table {
			return sec
		}
	}
	sec := &section{name: table, chains: map[string]bool{}}
	s.tables = append(s.tables, sec)
	return sec
}

// Set makes a chain hold rules and nothing else, whether it was there or not.
// Rules are lines that begin with "-A NAME" and end in a newline.
func (s *Script) Set(table, chain string, rules []byte) {
	sec := s.section(table)
	sec.chains[chain] = true
	declare(&sec.declare, chain)
	sec.sets = append(sec.sets, filled{chain, sec.rules.Len(), sec.rules.Len() + len(rules)})
	sec.rules.Write(rules)
}

// Remove removes a chain, whether it was there or not. Nothing may lead to it any more
// but chains that the script sets or removes.
func (s *Script) Remove(table, chain string) {
	sec := s.section(table)
	sec.chains[chain] = true
	sec.removed = append(sec.removed, chain)
	declare(&sec.declare, chain)
	fmt.Fprintf(&sec.remove, "-X %s\n", chain)
}

// declare makes a chain that is empty.
func declare(b *bytes.Buffer, chain string) { fmt.Fprintf(b, ":%s - [0:0]\n", chain) }

// Link puts a rule into a chain that is not ours, after the first n of its rules
// that the script does not Unlink. It leads to a chain that is there, or that has been Set.
func (s *Script) Link(table, chain, rule string, n int) {
	sec := s.section(table)
	if target := rule[strings.LastIndexByte(rule, ' ')+1:]; sec.chains[target] {
		declare(&sec.early, target)
	}
	fmt.Fprintf(&sec.link, "-I %s %d %s\n", chain, n+1, rule)
}

// Unlink takes a rule, which must be there, out of a chain that is not ours.
func (s *Script) Unlink(table, chain, rule string) {
	fmt.Fprintf(&s.section(table).unlink, "-D %s %s\n", chain, rule)
}

// Chains calls do with each chain that the script sets or removes.
func (s *Script) Chains(do func(table, chain string)) {
	for _, sec := range s.tables {
		for chain := range sec.chains {
			do(sec.name, chain)
		}
	}
}

// Removed calls do with each chain that the script removes.
func (s *Script) Removed(do func(table, chain string)) {
	for _, sec := range s.tables {
		for _, chain := range sec.removed {
			do(sec.name, chain)
		}
	}
}

// Tables returns how many tables the script changes, each in a transaction of its own.
func (s *Script) Tables() int { return len(s.tables) }

// Len returns about how many bytes of rules the script has.
func (s *Script) Len() (n int) {
	for _, sec := range s.tables {
		n += sec.rules.Len() + sec.declare.Len()
	}
	return n
}

// Empty tells whether the script does nothing.
func (s *Script) Empty() bool { return len(s.tables) == 0 }

// manyChains is from how many chains on iptables-nft-restore is told to list the
// table. For each line it walks a sorted list of the chains that the input names,
// to read no others from the kernel: with 10,000 chains of ten rules that takes
// 10 s. A command that needs all chains spares it that, and 10,000 chains take
// 1 s; but then it reads the whole table. Measured with iptables 1.8.9, which
// also forgets to make the built-in chains if the listing comes before their first rule.
const manyChains = 2000

// bytes returns the input of iptables-restore of a variant.
func (s *Script) bytes(v Variant) []byte {
	var b bytes.Buffer
	for _, sec := range s.tables {
		listing := ""
		if v == NFT && len(sec.chains) >= manyChains {
			listing = "-S\n"
		}
		fmt.Fprintf(&b, "*%s\n%s%s%s%s", sec.name, &sec.unlink, &sec.early, &sec.link, listing)
		fmt.Fprintf(&b, "%s%s%sCOMMIT\n", &sec.declare, &sec.rules, &sec.remove)
	}
	return b.Bytes()
}

// nftWriter is taken by who writes through the nft variant. When somebody else, also
// of the other family, writes between its listing and its commit, iptables-restore
// 1.8.9 tries again, and says "File exists" of chains that it means to make itself.
var nftWriter = make(chan struct{}, 1)

// Turn waits for the turn to write: whoever calls Restore has it. release ends it.
func (t *Tool) Turn(ctx context.Context) (release func(), err error) {
	if t.Variant != NFT {
		return func() {}, nil
	}
	select {
	case nftWriter <- struct{}{}:
		return func() { <-nftWriter }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("writing rules: waiting for the other family: %w", context.Cause(ctx))
	}
}

// Restore runs a script, in its turn. An empty one starts no program.
func (t *Tool) Restore(ctx context.Context, s *Script) error {
	if s.Empty() {
		return nil
	}
	release, err := t.Turn(ctx)
	if err != nil {
		return err
	}
	defer release()
	return t.RestoreNow(ctx, s)
}

// RestoreNow runs a script whose turn it is.
func (t *Tool) RestoreNow(ctx context.Context, s *Script) error {
	input := s.bytes(t.Variant)
	err := run(ctx, bytes.NewReader(input), nil, t.restore, "--noflush", "-w", strconv.Itoa(lockWait))
	if err == nil {
		return nil
	}
	return fmt.Errorf("writing rules: %w", t.nameHolder(quote(err, input)))
}

// faultLine finds the line that iptables-restore names: "line 5 failed" when the
// kernel refused it, "Error occurred at line: 5" when it was not understood.
var faultLine = regexp.MustCompile(`(?:line:? )(\d+)`)

// quote adds to an error of iptables-restore the line it speaks of. A COMMIT says
// that the table was refused as a whole.
func quote(err error, input []byte) error {
	var exit *exitError
	if !errors.As(err, &exit) {
		return err
	}
	m := faultLine.FindStringSubmatch(exit.msg)
	if m == nil {
		return err
	}
	n, convErr := strconv.Atoi(m[1])
	lines := bytes.SplitN(input, []byte("\n"), n+1)
	if convErr != nil || n < 1 || len(lines) < n {
		return err
	}
	return fmt.Errorf("%w; line %d is %q", err, n, lines[n-1])
}
