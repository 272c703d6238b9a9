// Package xtables speaks iptables through iptables-save and iptables-restore. It
// holds chains whose names begin with a prefix, and the jumps to them, and
// touches nothing else.
//
// Rules are text in exactly the words in which iptables-save prints them, for
// both variants alike, so that comparing with the kernel is comparing text.
package xtables

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/coreos/go-iptables/iptables"
)

// A Variant is what iptables writes to.
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

	asking sync.Mutex
	asker  *iptables.IPTables // nil: not needed yet
}

// String returns the name that the programs of the tool begin with.
func (t *Tool) String() string { return Base(t.IPv6) + "-" + string(t.Variant) }

// Base returns the name that the programs of a family begin with, as in "ip6tables".
func Base(v6 bool) string {
	if v6 {
		return "ip6tables"
	}
	return "iptables"
}

// Installed returns the tools of a family that this host has: the one that plain
// iptables means first.
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

// plainTool finds the programs without a variant in their names and asks which
// they are. Where only the names with one exist the first of these stands for it.
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
	var version []byte
	err := run(ctx, nil, func(out io.Reader) (err error) {
		version, err = io.ReadAll(out)
		return err
	}, t.restore, "--version")
	if err != nil {
		return nil, err
	}
	t.Variant = Legacy // before 1.8 there was no other, and the version did not say it
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

// program returns the path of the program that takes single commands, which stands beside the others.
func (t *Tool) program() string { return strings.TrimSuffix(t.save, "-save") }

// killed is how long a program that was killed may hold on to its output.
const killed = time.Second

// messages is how much of a program's standard error is kept, in bytes.
const messages = 4096

// run runs a program, in the network namespace of the calling thread, until ctx
// ends: then it and its children are killed. read, if not nil, gets what it prints.
func run(ctx context.Context, stdin io.Reader, read func(io.Reader) error, path string, args ...string) error {
	inner, kill := context.WithCancel(ctx)
	defer kill()
	var stderr capped
	cmd := exec.CommandContext(inner, path, args...)
	cmd.Stderr = &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = killed
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
		kill()         // it may wait for ever to be read
		_ = cmd.Wait() // which says that it was killed
		return fmt.Errorf("%s: %w", path, err)
	}
	return explain(ctx, path, cmd.Wait(), &stderr)
}

// explain adds to the error of a program what it said, or that its time was over.
func explain(ctx context.Context, path string, err error, stderr *capped) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", path, context.Cause(ctx))
	}
	if msg := strings.TrimSpace(stderr.String()); msg != "" {
		return &exitError{path, msg, err}
	}
	return fmt.Errorf("%s: %w", path, err)
}

// An exitError is what a program said before it failed.
type exitError struct {
	path, msg string
	err       error
}

func (e *exitError) Error() string { return e.path + ": " + e.err.Error() + ": " + e.msg }
func (e *exitError) Unwrap() error { return e.err }

// A capped buffer forgets what is written beyond its first bytes.
type capped struct{ bytes.Buffer }

func (c *capped) Write(p []byte) (int, error) {
	if room := messages - c.Len(); room > 0 {
		c.Buffer.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}
