package iptables

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"

	"svcproxy/netutil/xtables"
	"svcproxy/proxier"
	"svcproxy/proxier/filter"
)

// Clients returns which endpoint of pools each client keeps, up to so many, of the
// rules of either variant, whether or not a Backend is open. With an error it returns
// those that were read.
func Clients(ctx context.Context, fam proxier.Family, pools []*proxier.Pool, limit int) ([]proxier.Client, error) {
	var list []proxier.Client
	for _, p := range pools {
		of, err := clientsOf(ctx, fam, p)
		list = append(list, of[:min(len(of), limit-len(list))]...)
		if err != nil {
			return list, fmt.Errorf("iptables, %s: reading which clients keep their endpoint: %w", fam, err)
		}
		if len(list) == limit {
			break
		}
	}
	return list, nil
}

// clientsOf returns the clients of a pool, each once: the first list that has it counts.
func clientsOf(ctx context.Context, fam proxier.Family, p *proxier.Pool) (list []proxier.Client, err error) {
	seen := map[netip.Addr]bool{}
	for i, t := range p.Targets {
		if err := ctx.Err(); err != nil {
			return list, err
		}
		recent, err := xtables.ReadRecent(filter.RecentList(p, t))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return list, err
		}
		for _, r := range recent {
			left := p.Affinity - r.Age
			if left <= 0 || seen[r.Addr] || proxier.FamilyOf(r.Addr) != fam {
				continue
			}
			seen[r.Addr] = true
			list = append(list, proxier.Client{Addr: r.Addr, Pool: p, Target: i, Left: left})
		}
	}
	return list, nil
}

// Keep has clients keep their endpoints as if they had come here just now, and
// returns how many do: each list has room for so many, and gets those that would be
// remembered longest. Its order is that in which they would be forgotten.
func Keep(ctx context.Context, fam proxier.Family, clients []proxier.Client) (kept int, err error) {
	limit := xtables.RecentLimit()
	for list, of := range byList(clients) {
		if err := ctx.Err(); err != nil {
			return kept, err
		}
		slices.SortFunc(of, func(a, b proxier.Client) int { return cmp.Compare(a.Left, b.Left) })
		if limit > 0 && len(of) > limit {
			of = of[len(of)-limit:]
		}
		addrs := make([]netip.Addr, len(of))
		for i, c := range of {
			addrs[i] = c.Addr
		}
		err := xtables.AddRecent(list, addrs)
		if errors.Is(err, fs.ErrNotExist) { // the endpoint has left
			continue
		}
		if err != nil {
			return kept, fmt.Errorf("iptables, %s: having clients keep their endpoint: %w", fam, err)
		}
		kept += len(of)
	}
	return kept, nil
}

func byList(clients []proxier.Client) map[string][]proxier.Client {
	type endpoint struct {
		pool   *proxier.Pool
		target int
	}
	names, lists := map[endpoint]string{}, map[string][]proxier.Client{}
	for _, c := range clients {
		at := endpoint{c.Pool, c.Target}
		if names[at] == "" {
			names[at] = filter.RecentList(c.Pool, c.Pool.Targets[c.Target])
		}
		lists[names[at]] = append(lists[names[at]], c)
	}
	return lists
}
