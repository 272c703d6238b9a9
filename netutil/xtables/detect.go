package xtables

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// A Choice is the tool to use on a host.
type Choice struct {
	Use   *Tool
	Stale []*Tool // others with chains of ours, left by a run that chose differently
}

// Choose returns the variant that this host uses, of those that the kernel has: the
// one with chains of ours, else the one with most foreign rules, else the one that
// plain iptables is. It creates no table, as long as read does not, which reads all tables of a tool.
func Choose(ctx context.Context, v6 bool, read func(context.Context, *Tool) (map[string]*Table, error)) (*Choice, error) {
	tools, err := Installed(ctx, v6)
	if err != nil {
		return nil, fmt.Errorf("looking for %s: %w", Base(v6), err)
	}
	var choice Choice
	var withOurs []*Tool
	var lacking error
	most := -1
	for _, t := range tools {
		tables, err := read(ctx, t)
		if errors.Is(err, errors.ErrUnsupported) {
			lacking = err
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("looking for the variant of %s in use: %w", Base(v6), err)
		}
		ours, foreign := false, 0
		for _, tab := range tables {
			ours = ours || len(tab.Chains) > 0
			foreign += tab.Foreign
		}
		if ours {
			withOurs = append(withOurs, t)
		}
		if foreign > most {
			choice.Use, most = t, foreign
		}
	}
	if choice.Use == nil {
		return nil, fmt.Errorf("looking for a variant of %s that this kernel has: %w", Base(v6), lacking)
	}
	if len(withOurs) > 0 {
		choice.Use, choice.Stale = withOurs[0], withOurs[1:]
	}
	return &choice, nil
}

// Purge returns a script that removes all our chains from tables, and the jumps to them
// from built-in chains, and describes the chains that stay, empty, because foreign
// chains jump to them.
func Purge(tables map[string]*Table) (s *Script, left []string) {
	s = &Script{}
	for name, tab := range tables {
		for chain := range tab.Policies {
			for _, rule := range tab.Jumps[chain] {
				s.DeleteJump(name, chain, rule)
			}
		}
		for chain := range tab.Chains {
			if by := tab.ReferencedBy(chain); len(by) > 0 {
				s.Set(name, chain, nil)
				left = append(left, fmt.Sprintf("chain %s of table %s stays, empty: %s jumps to it", chain, name, strings.Join(by, ", ")))
			} else {
				s.Remove(name, chain)
			}
		}
	}
	return s, left
}
