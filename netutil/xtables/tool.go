// Package xtables reads and writes iptables rules with iptables-save and
// iptables-restore. It handles chains whose names begin with a prefix, and the jumps
// to them, and touches nothing else. A Tool is the programs of one family and Variant; a Reader reads a Table, and a
// Script changes it.
//
//	tool.go, detect.go           programs, and the variant that a host uses
//	save.go                      reading whole tables
//	chains.go, native.go         reading chains, also beside rules that iptables cannot print
//	overrule.go                  which foreign rules may keep packets from ours
//	script.go                    writing, and the lock of writers of the nft variant
//	children.go                  which commits to nf_tables are ours
//	probe.go                     single queries and trial rules, by go-iptables
//	tableinfo.go                 cheap checks for changes, of the legacy variant
//	recent.go                    lists of the match recent
//	lock.go                      the lock of the legacy variant
//
// Rules are text exactly as iptables-save prints them, the same for both variants, so
// that comparing with the kernel is comparing text.
package xtables

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/coreos/go-iptables/iptables"

	"svcproxy.dev/svcproxy/internal/awaited"
)

// A Variant is the kernel interface that iptables uses.
type Variant string

// NFT is iptables over nf_tables, Legacy the kernel's ip_tables.
const (
	NFT    Variant = "nft"
	Legacy Variant = "legacy"
)

// A Tool is one family and variant of the iptables programs.
type Tool struct {
	Variant Variant
	IPv6    bool

	save, restore string // paths

	clientMu     sync.Mutex
	cachedClient *iptables.IPTables // nil: not needed yet
}

// String returns the common prefix of the tool's program names.
func (t *Tool) String() string { return Base(t.IPv6) + "-" + string(t.Variant) }

// Base returns the common prefix of a family's program names, as in "ip6tables".
func Base(v6 bool) string {
	if v6 {
		return "ip6tables"
	}
	return "iptables"
}

// Installed returns the tools of a family that this host has, first the one that
// plain iptables is.
func Installed(ctx context.Context, v6 bool) ([]*Tool, error) {
	plain, err := plainTool(ctx, v6)
	if err != nil {
		return nil, err
	}
	tools := []*Tool{plain}
	for _, v := range []Variant{NFT, Legacy} {
		t := &Tool{Variant: v, IPv6: v6}
		if v != plain.Variant && t.find(t.String()) == nil {
			tools = append(tools, t)
		}
	}
	return tools, nil
}

// LegacyTables returns the names of the tables of the legacy variant that the kernel has. A program
// that is asked for one creates it.
func LegacyTables(v6 bool) []string { return legacyNames(v6, "names") }

// HasTarget reports whether the legacy variant has a table, and the kernel a target, as it does while rules use it. It is
// false for the nft variant, whose targets the kernel does not list.
func (t *Tool) HasTarget(table, target string) bool {
	return t.Variant == Legacy && slices.Contains(LegacyTables(t.IPv6), table) && slices.Contains(legacyNames(t.IPv6, "targets"), target)
}

// legacyNames reads a list of the legacy variant: its tables, as "names", or "targets" of its rules.
func legacyNames(v6 bool, list string) []string {
	family := "ip"
	if v6 {
		family = "ip6"
	}
	text, err := os.ReadFile("/proc/thread-self/net/" + family + "_tables_" + list)
	if err != nil {
		return nil // the kernel has none
	}
	return strings.Fields(string(text))
}

// plainTool finds the programs without a variant in their names, and asks them which
// one they are. If they do not exist, it returns the first variant that does.
func plainTool(ctx context.Context, v6 bool) (*Tool, error) {
	t := &Tool{IPv6: v6}
	if err := t.find(Base(v6)); err != nil {
		for _, t.Variant = range []Variant{NFT, Legacy} {
			if t.find(t.String()) == nil {
				return t, nil
			}
		}
		return nil, fmt.Errorf("%w; install the package iptables", err)
	}
	version, err := output(ctx, nil, t.restore, "--version")
	if err != nil {
		return nil, err
	}
	t.Variant = Legacy // before 1.8 it was the only one, and not part of the version
	if bytes.Contains(version, []byte("nf_tables")) {
		t.Variant = NFT
	}
	return t, nil
}

func (t *Tool) find(name string) (err error) {
	if t.save, err = exec.LookPath(name + "-save"); err != nil {
		return err
	}
	t.restore, err = exec.LookPath(name + "-restore")
	return err
}

// program returns the path of the program for single commands, which is beside the others.
func (t *Tool) program() string { return strings.TrimSuffix(t.save, "-save") }

// outputWait is how long the output of a program may stay open after it has ended. Its children are killed with it, so
// only a machine that stands still takes so long; a program that has succeeded must not count as failed for that.
const outputWait = 10 * time.Second

// maxStderr is how much of a program's standard error is kept, in bytes.
const maxStderr = 4096

// run runs a program in the network namespace of the calling thread. When ctx ends, it
// and its children are killed. read, if not nil, gets its output.
func run(ctx context.Context, stdin io.Reader, read func(io.Reader) error, path string, args ...string) error {
	defer awaited.Begin(ctx, filepath.Base(path), foreignHolder)()
	inner, kill := context.WithCancel(ctx)
	defer kill()
	var stderr capped
	cmd := exec.CommandContext(inner, path, args...)
	cmd.Stderr = &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = outputWait
	if read == nil {
		return explain(ctx, path, runKnown(cmd, stdin), &stderr)
	}
	cmd.Stdin = stdin
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if err := read(stdout); err != nil && ctx.Err() == nil {
		kill()         // it may block on its output forever
		_ = cmd.Wait() // only says that it was killed
		return fmt.Errorf("%s: %w", path, err)
	}
	return explain(ctx, path, cmd.Wait(), &stderr)
}

// output returns what a program prints.
func output(ctx context.Context, stdin io.Reader, path string, args ...string) (text []byte, err error) {
	err = run(ctx, stdin, func(out io.Reader) (err error) {
		text, err = io.ReadAll(out)
		return err
	}, path, args...)
	return text, err
}

// explain adds a program's standard error, or why it was killed, to its error.
func explain(ctx context.Context, path string, err error, stderr *capped) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", path, context.Cause(ctx))
	}
	if msg := bytes.TrimSpace(stderr.Bytes()); len(msg) > 0 {
		return fmt.Errorf("%s: %w: %s", path, err, msg)
	}
	return fmt.Errorf("%s: %w", path, err)
}

// A capped buffer discards what is written beyond maxStderr bytes.
type capped struct{ bytes.Buffer }

func (c *capped) Write(p []byte) (int, error) {
	if room := maxStderr - c.Len(); room > 0 {
		c.Buffer.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}
