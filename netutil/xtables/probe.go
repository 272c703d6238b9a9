package xtables

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/coreos/go-iptables/iptables"
)

// A Feature is a match or a target that rules may need.
type Feature struct {
	Name  string // as it is written after -m or -j
	Table string
	Words []string // of a rule that needs it, and as little else as can be
}

// Lacking says of features that cannot be had why, by name.
type Lacking map[string]string

// probeTries is how often a probe is repeated whose chain has been removed meanwhile.
const probeTries = 3

// Probe finds out which features this host lacks, be it the kernel or iptables, by
// making rules in chains of its own, to which nothing leads, whose names begin with
// prefix. Where all rules of together can be made, it has them all; otherwise each is tried.
func (t *Tool) Probe(ctx context.Context, prefix string, together, each []Feature) (Lacking, error) {
	c, err := t.client()
	if err != nil {
		return nil, err
	}
	chain := fmt.Sprintf("%s-%d", prefix, os.Getpid())
	over := time.Now().Add(lockWait * time.Second)
	for try := 1; ; try++ {
		p := prober{tool: t, client: c, ctx: ctx, over: over, chain: chain, tables: map[string]bool{}, lacking: Lacking{}}
		err := p.probe(together)
		if err == nil && len(p.lacking) > 0 {
			p.lacking = Lacking{}
			err = p.probe(each)
		}
		err = errors.Join(err, p.remove())
		if err == nil || try == probeTries || ctx.Err() != nil {
			return p.lacking, err
		}
	}
}

type prober struct {
	tool    *Tool
	client  *iptables.IPTables
	ctx     context.Context
	over    time.Time // no command waits for the lock any more
	chain   string
	tables  map[string]bool // in which the chain was made
	lacking Lacking
}

// patiently runs a command again while the lock is held: no command can be
// interrupted, so that each waits for lockPatience only.
func (p *prober) patiently(command func() error) error {
	for {
		err := command()
		if !isLocked(err) {
			return err
		}
		if p.ctx.Err() != nil {
			return errors.Join(context.Cause(p.ctx), p.tool.nameHolder(err))
		}
		if time.Now().After(p.over) {
			return p.tool.nameHolder(err)
		}
	}
}

func (p *prober) append(table string, words ...string) error {
	return p.patiently(func() error { return p.client.Append(table, p.chain, words...) })
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
		// That may be for another reason: a lock that is held, a chain that was removed.
		if sound := p.append(f.Table, "-j", "RETURN"); sound != nil {
			return fmt.Errorf("trying %s in chain %s of table %s: %w", f.Name, p.chain, f.Table, sound)
		}
		p.lacking[f.Name] = err.Error()
	}
	return nil
}

// open makes the chain in a table, empty, also where an earlier process left one.
func (p *prober) open(table string) error {
	if p.tables[table] {
		return nil
	}
	err := p.patiently(func() error {
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

func (p *prober) remove() error {
	var errs []error
	for table := range p.tables {
		if err := p.patiently(func() error { return p.client.ClearAndDeleteChain(table, p.chain) }); err != nil {
			errs = append(errs, fmt.Errorf("removing chain %s of table %s: %w", p.chain, table, err))
		}
	}
	return errors.Join(errs...)
}

// HasRandomFully reports whether iptables knows MASQUERADE --random-fully, and which version it is.
func (t *Tool) HasRandomFully() (has bool, version string, err error) {
	c, err := t.client()
	if err != nil {
		return false, "", err
	}
	v1, v2, v3 := c.GetIptablesVersion()
	return c.HasRandomFully(), fmt.Sprintf("%d.%d.%d", v1, v2, v3), nil
}
