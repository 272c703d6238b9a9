package xtables

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/coreos/go-iptables/iptables"
)

// A Feature is a match or a target that rules may need.
type Feature struct {
	Name  string // as written after -m or -j
	Table string
	Words []string // of a rule that needs it, and little else
}

// Missing holds the features that a host lacks, by name, with the reason.
type Missing map[string]string

// probeTries is how often a probe is tried whose chain is removed meanwhile, within lockWait in all.
const probeTries = 3

// Probe finds out which features this host, its kernel or its iptables, lacks, by
// adding rules to chains of its own, which nothing jumps to, whose names begin with
// prefix. If all rules of combined can be added, by one iptables-restore, none is missing;
// otherwise those of single are tried one by one.
func (t *Tool) Probe(ctx context.Context, prefix string, combined, single []Feature) (Missing, error) {
	c, err := t.client()
	if err != nil {
		return nil, err
	}
	chain := fmt.Sprintf("%s-%d", prefix, os.Getpid())
	ctx, cancel := context.WithTimeoutCause(ctx, lockWait*time.Second, fmt.Errorf("it took longer than %d s", lockWait))
	defer cancel()
	for try := 1; ; try++ {
		p := prober{tool: t, client: c, ctx: ctx, chain: chain, tables: map[string]bool{}, missing: Missing{}}
		err := p.addAll(combined)
		if err != nil && ctx.Err() == nil {
			err = p.probe(single)
		}
		err = errors.Join(err, p.remove())
		if err == nil || try == probeTries || ctx.Err() != nil {
			return p.missing, err
		}
	}
}

type prober struct {
	tool    *Tool
	client  *iptables.IPTables
	ctx     context.Context
	chain   string
	tables  map[string]bool // in which the chain may be; true: in which it is
	missing Missing
}

// addAll adds the rules of all features at once.
func (p *prober) addAll(features []Feature) error {
	var s Script
	for _, f := range features {
		s.Set(f.Table, p.chain, fmt.Appendf(nil, "-A %s %s\n", p.chain, strings.Join(f.Words, " ")))
		p.tables[f.Table] = false // its transaction may fail
	}
	return p.tool.Restore(p.ctx, &s)
}

// retryLocked repeats a command while the lock is held: a command cannot be
// interrupted, so each waits only for queryLockWait.
func (p *prober) retryLocked(command func() error) error {
	for {
		err := command()
		if !isLocked(err) {
			return err
		}
		if p.ctx.Err() != nil {
			return errors.Join(context.Cause(p.ctx), p.tool.nameHolder(err))
		}
	}
}

func (p *prober) append(table string, words ...string) error {
	return p.retryLocked(func() error { return p.client.Append(table, p.chain, words...) })
}

func (p *prober) probe(features []Feature) error {
	for _, f := range features {
		if err := p.ctx.Err(); err != nil {
			return err
		}
		if err := p.open(f.Table); err != nil {
			return err
		}
		err := p.append(f.Table, f.Words...)
		if err == nil {
			continue
		}
		// The cause may be another: the lock is held, the chain was removed.
		if plainErr := p.append(f.Table, "-j", "RETURN"); plainErr != nil {
			return fmt.Errorf("trying %s in chain %s of table %s: %w", f.Name, p.chain, f.Table, plainErr)
		}
		p.missing[f.Name] = err.Error()
	}
	return nil
}

// open creates the chain unless it exists: addAll may have committed some tables before
// another was refused, or an earlier process left one.
func (p *prober) open(table string) error {
	if p.tables[table] {
		return nil
	}
	p.tables[table] = false
	err := p.retryLocked(func() error {
		exists, err := p.client.ChainExists(table, p.chain)
		if err == nil && !exists {
			err = p.client.NewChain(table, p.chain)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("trying rules of table %s: %w", table, err)
	}
	p.tables[table] = true
	return nil
}

// remove removes the chains, after the end of the context too, if that takes no longer
// than the lock is waited for then.
func (p *prober) remove() error {
	var s Script
	for table := range p.tables {
		s.Remove(table, p.chain)
	}
	err := p.tool.Restore(p.ctx, &s)
	if p.ctx.Err() != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(p.ctx), queryLockWait*time.Second)
		defer cancel()
		err = p.tool.Restore(ctx, &s)
	}
	if err != nil {
		return fmt.Errorf("removing chains %s: %w", p.chain, err)
	}
	return nil
}

// HasRandomFully reports whether iptables supports MASQUERADE --random-fully, and its version.
func (t *Tool) HasRandomFully() (has bool, version string, err error) {
	c, err := t.client()
	if err != nil {
		return false, "", err
	}
	v1, v2, v3 := c.GetIptablesVersion()
	return c.HasRandomFully(), fmt.Sprintf("%d.%d.%d", v1, v2, v3), nil
}

// queryLockWait is how many seconds one query waits for the lock of the legacy
// variant. It cannot be interrupted, and a daemon that stops must do so within a second or so.
const queryLockWait = 1

// client returns the client for single queries, each of which costs a process.
func (t *Tool) client() (*iptables.IPTables, error) {
	t.clientMu.Lock()
	defer t.clientMu.Unlock()
	if t.cachedClient != nil {
		return t.cachedClient, nil
	}
	family := iptables.ProtocolIPv4
	if t.IPv6 {
		family = iptables.ProtocolIPv6
	}
	c, err := iptables.New(iptables.IPFamily(family), iptables.Path(t.program()), iptables.Timeout(queryLockWait))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", t.program(), err)
	}
	t.cachedClient = c
	return c, nil
}

// ChainExists reports whether a table has a chain.
func (t *Tool) ChainExists(table, chain string) (bool, error) {
	c, err := t.client()
	if err != nil {
		return false, err
	}
	exists, err := c.ChainExists(table, chain)
	if err != nil {
		return false, fmt.Errorf("looking for chain %s of table %s: %w", chain, table, err)
	}
	return exists, nil
}
