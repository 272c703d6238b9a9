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
	"sync/atomic"
	"time"

	"svcproxy.dev/svcproxy/internal/awaited"
	"svcproxy.dev/svcproxy/netutil/nft"
)

// A Script is the input of one iptables-restore. Each table in it is changed atomically.
type Script struct {
	tables []*section
}

type section struct {
	name                                                    string
	chains                                                  map[string]bool   // set or removed
	filled                                                  []string          // chains that are set, in their order
	rules                                                   map[string][]byte // of these
	removed                                                 []string
	deleteJumps, declareEarly, insertJumps, declare, remove bytes.Buffer // in the order of the input
}

func (s *Script) section(table string) *section {
	for _, sec := range s.tables {
		if sec.name == table {
			return sec
		}
	}
	sec := &section{name: table, chains: map[string]bool{}, rules: map[string][]byte{}}
	s.tables = append(s.tables, sec)
	return sec
}

// Set makes a chain hold exactly the rules, after those of an earlier Set, and creates it if needed.
// Rules are lines that begin with "-A NAME" and end in a newline.
func (s *Script) Set(table, chain string, rules []byte) {
	sec := s.section(table)
	sec.chains[chain] = true
	declare(&sec.declare, chain)
	if _, again := sec.rules[chain]; !again {
		sec.filled = append(sec.filled, chain)
	}
	sec.rules[chain] = append(sec.rules[chain], rules...)
}

// Remove removes a chain, if it exists. Only chains that the script sets or removes may
// still jump to it.
func (s *Script) Remove(table, chain string) {
	sec := s.section(table)
	sec.chains[chain] = true
	sec.removed = append(sec.removed, chain)
	declare(&sec.declare, chain)
	fmt.Fprintf(&sec.remove, "-X %s\n", chain)
}

// declare creates or empties a chain.
func declare(b *bytes.Buffer, chain string) { fmt.Fprintf(b, ":%s - [0:0]\n", chain) }

// InsertJump inserts a rule into a chain that is not ours, after the first n of the rules
// that the script does not delete. Its target exists, or has been Set.
func (s *Script) InsertJump(table, chain, rule string, n int) {
	sec := s.section(table)
	if target := rule[strings.LastIndexByte(rule, ' ')+1:]; sec.chains[target] {
		declare(&sec.declareEarly, target)
	}
	fmt.Fprintf(&sec.insertJumps, "-I %s %d %s\n", chain, n+1, rule)
}

// DeleteJump deletes a rule, which must exist, from a chain that is not ours.
func (s *Script) DeleteJump(table, chain, rule string) {
	fmt.Fprintf(&s.section(table).deleteJumps, "-D %s %s\n", chain, rule)
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

// Len returns roughly how many bytes of rules the script has.
func (s *Script) Len() (n int) {
	for _, sec := range s.tables {
		n += sec.declare.Len()
		for _, rules := range sec.rules {
			n += len(rules)
		}
	}
	return n
}

// commits reports whether the script changes more than that some chains are empty.
func (s *Script) commits() bool {
	return slices.ContainsFunc(s.tables, func(sec *section) bool {
		return sec.deleteJumps.Len()+sec.insertJumps.Len()+sec.remove.Len() > 0 ||
			slices.ContainsFunc(sec.filled, func(chain string) bool { return len(sec.rules[chain]) > 0 })
	})
}

// Empty reports whether the script does nothing.
func (s *Script) Empty() bool { return len(s.tables) == 0 }

// manyChains is the number of chains from which on iptables-nft-restore is made to
// list the table. For each line it walks a sorted list of the chains that the input
// names, to read no others from the kernel: with 10,000 chains of ten rules that
// takes 10 s. A command that needs all chains avoids that, and 10,000 chains take
// 1 s; but then it reads the whole table. Measured with iptables 1.8.9, which also
// fails to create the built-in chains if the listing comes before their first rule.
const manyChains = 2000

// bytes returns the input for iptables-restore of a variant.
func (s *Script) bytes(v Variant) []byte {
	var b bytes.Buffer
	for _, sec := range s.tables {
		listing := ""
		if v == NFT && len(sec.chains) >= manyChains {
			listing = "-S\n"
		}
		fmt.Fprintf(&b, "*%s\n%s%s%s%s", sec.name, &sec.deleteJumps, &sec.declareEarly, &sec.insertJumps, listing)
		b.Write(sec.declare.Bytes())
		for _, chain := range sec.filled {
			b.Write(sec.rules[chain])
		}
		fmt.Fprintf(&b, "%sCOMMIT\n", &sec.remove)
	}
	return b.Bytes()
}

// writerPatience is how long a writer waits for another one of this process. 10,000 chains take 1 s.
var writerPatience = 3 * time.Second

// nftWriter is a lock for writing through the nft variant. When another writer, even of
// the other family, commits between its listing and its commit, iptables-restore 1.8.9
// tries again, and fails with "File exists" for chains that it is about to create itself.
var nftWriter atomic.Pointer[writer] // nil: none writes

// readerPatience is how long a writer waits while another family of this process reads all tables for the first time.
// 10,000 services take 1.2 s, and several times as long on a busy machine.
const readerPatience = 15 * time.Second

// A writer that holds the lock for too long loses it: a program that hangs does not commit, and must not keep the
// other family from writing.
type writer struct {
	patience time.Duration // of others, where it is more than writerPatience
	ended    chan struct{} // closed when it ends, or loses the lock
}

func (w *writer) end() {
	if nftWriter.CompareAndSwap(w, nil) {
		close(w.ended)
	}
}

// LockWriter waits for other writers of this process, as Restore does, and locks them
// out until unlock, or until one has waited for writerPatience.
func (t *Tool) LockWriter(ctx context.Context) (unlock func(), err error) {
	return t.lock(ctx, 0)
}

// LockOutWriters is LockWriter for a reading of all tables, which any commit makes begin again. Others wait longer for it.
func (t *Tool) LockOutWriters(ctx context.Context) (unlock func(), err error) {
	return t.lock(ctx, readerPatience)
}

func (t *Tool) lock(ctx context.Context, patience time.Duration) (unlock func(), err error) {
	if t.Variant != NFT {
		return func() {}, nil
	}
	defer awaited.Begin(ctx, "the other family", nil)()
	mine := &writer{patience, make(chan struct{})}
	for !nftWriter.CompareAndSwap(nil, mine) {
		other := nftWriter.Load()
		if other == nil {
			continue
		}
		select {
		case <-other.ended:
		case <-time.After(max(writerPatience, other.patience)):
			other.end()
		case <-ctx.Done():
			return nil, fmt.Errorf("writing rules: waiting for the other family: %w", context.Cause(ctx))
		}
	}
	return mine.end, nil
}

// Restore runs a script, holding the writer's lock. An empty one starts no program.
func (t *Tool) Restore(ctx context.Context, s *Script) error {
	if s.Empty() {
		return nil
	}
	unlock, err := t.LockWriter(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	return t.RestoreLocked(ctx, s)
}

// RestoreLocked runs a script for a caller that holds the writer's lock.
func (t *Tool) RestoreLocked(ctx context.Context, s *Script) error {
	input := s.bytes(t.Variant)
	before := s.generation(t.Variant)
	err := run(ctx, bytes.NewReader(input), nil, t.restore, "--noflush", "-w", strconv.Itoa(lockWait))
	if err == nil && before != unknownGeneration && s.generation(t.Variant) == before {
		err = fmt.Errorf("%s: %w", t.restore, ErrNothingWritten)
	}
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", errRestore, t.nameHolder(quoteLine(err, input)))
}

// ErrNothingWritten says that a program ended without an error and did not do what it was to.
var ErrNothingWritten = errors.New("it ended without an error, and the kernel does not hold what it was to write")

// unknownGeneration is that of a variant or a kernel without generations.
const unknownGeneration = -1

// generation returns the generation of nf_tables if the script raises it: even rules that are as they were do,
// but emptying an empty chain does not.
func (s *Script) generation(v Variant) int64 {
	if v != NFT || !s.commits() {
		return unknownGeneration
	}
	now, err := nft.CurrentGeneration()
	if err != nil {
		return unknownGeneration
	}
	return int64(now)
}

// errRestore is the error of iptables-restore.
var errRestore = errors.New("writing rules")

// IsRestoreError reports whether iptables-restore did not write what it was given.
func IsRestoreError(err error) bool { return errors.Is(err, errRestore) }

// faultLine finds the line that iptables-restore names: "line 5 failed" if the
// kernel refused it, "Error occurred at line: 5" if it could not be parsed.
var faultLine = regexp.MustCompile(`(?:line:? )(\d+)`)

// quoteLine adds the line that an error of iptables-restore names. A COMMIT means that
// the table was refused as a whole.
func quoteLine(err error, input []byte) error {
	m := faultLine.FindStringSubmatch(err.Error())
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

// Chunks splits s into scripts of about n chains each, to be run in order. A chain is
// filled after those that it jumps to, so that a packet never meets an incomplete one;
// then built-in chains get their jumps to ours, and chains are removed last. prefix
// begins the names of ours.
func (s *Script) Chunks(n int, prefix string) (chunks []*Script) {
	for _, sec := range s.tables {
		room := 0
		next := func() *Script { // for one more chain
			if room == 0 {
				chunks, room = append(chunks, &Script{}), n
			}
			room--
			return chunks[len(chunks)-1]
		}
		for _, chain := range sec.leavesFirst(prefix) {
			next().Set(sec.name, chain, sec.rules[chain])
		}
		for _, chain := range sec.removed { // they may jump to each other
			next().Set(sec.name, chain, nil)
		}
		room = 0
		if sec.deleteJumps.Len()+sec.insertJumps.Len() > 0 {
			chunk := &Script{}
			to := chunk.section(sec.name)
			to.deleteJumps.Write(sec.deleteJumps.Bytes())
			to.insertJumps.Write(sec.insertJumps.Bytes())
			chunks = append(chunks, chunk)
		}
		for _, chain := range sec.removed {
			next().Remove(sec.name, chain)
		}
	}
	return chunks
}

// leavesFirst returns the filled chains, each after those that it jumps to.
func (sec *section) leavesFirst(prefix string) (order []string) {
	done := make(map[string]bool, len(sec.filled))
	var visit func(chain string)
	visit = func(chain string) {
		if done[chain] {
			return
		}
		done[chain] = true
		for line := range bytes.Lines(sec.rules[chain]) {
			line = bytes.TrimSuffix(line, []byte("\n"))
			to := line[bytes.LastIndexByte(line, ' ')+1:]
			if _, filled := sec.rules[string(to)]; filled && jumpsTo(line, []byte(prefix)) {
				visit(string(to))
			}
		}
		order = append(order, chain)
	}
	for _, chain := range sec.filled {
		visit(chain)
	}
	return order
}
