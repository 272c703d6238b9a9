package xtables

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"svcproxy.dev/svcproxy/netutil/nft"
)

// A Choice is the tool to use on a host.
type Choice struct {
	Use   *Tool
	Stale []*Tool // others with chains of ours, left by a run that chose differently
}

// Choose returns the variant that this host uses, of those that the kernel has: the
// one with chains of ours, whose names begin with prefix, else the one with most foreign rules, else the one that
// plain iptables is. It creates no table, as long as read does not, which reads all tables of a tool.
func Choose(ctx context.Context, v6 bool, prefix string, read func(context.Context, *Tool) (map[string]*Table, error)) (*Choice, error) {
	tools, err := Installed(ctx, v6)
	if err != nil {
		return nil, fmt.Errorf("looking for %s: %w", Base(v6), err)
	}
	var foreign *Tool
	var ours []*Tool
	var lacking error
	most := -1
	for _, t := range tools {
		if t.namesOurs(prefix) { // then the number of foreign rules does not matter
			ours = append(ours, t)
			continue
		}
		tables, err := read(ctx, t)
		if errors.Is(err, errors.ErrUnsupported) {
			lacking = err
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("looking for the variant of %s in use: %w", Base(v6), err)
		}
		has, rules := false, 0
		for _, tab := range tables {
			has = has || len(tab.Chains) > 0
			rules += tab.Foreign
		}
		if has {
			ours = append(ours, t)
		}
		if rules > most {
			foreign, most = t, rules
		}
	}
	switch {
	case len(ours) > 0:
		return &Choice{Use: ours[0], Stale: ours[1:]}, nil
	case foreign == nil:
		return nil, fmt.Errorf("looking for a variant of %s that this kernel has: %w", Base(v6), lacking)
	}
	return &Choice{Use: foreign}, nil
}

// namesOurs reports whether the names of chains of the nft variant show that some are ours. To list 10,000 takes a
// hundredth of the time that it takes to read their rules.
func (t *Tool) namesOurs(prefix string) bool {
	if t.Variant != NFT {
		return false
	}
	conn, err := nft.Dial()
	if err != nil {
		return false // the reading of the rules says why
	}
	defer conn.Close()
	for table := range builtIn {
		names, err := conn.Chains(nft.Table{Family: t.family(), Name: table})
		if err == nil && slices.ContainsFunc(names, func(name string) bool { return strings.HasPrefix(name, prefix) }) {
			return true
		}
	}
	return false
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
