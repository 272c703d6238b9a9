package iptables

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"

	"svcproxy.dev/svcproxy/netutil/xtables"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/filter"
)

// Clients returns which endpoint of pools each client has affinity to, up to limit, for
// either variant, whether or not a Backend is open. With an error it returns those that
// were read.
func Clients(ctx context.Context, fam proxier.Family, pools []*proxier.Pool, limit int) ([]proxier.Client, error) {
	var list []proxier.Client
	for _, p := range pools {
		of, err := clientsOf(ctx, fam, p)
		list = append(list, of[:min(len(of), limit-len(list))]...)
		if err != nil {
			return list, fmt.Errorf("iptables, %s: reading session affinity: %w", fam, err)
		}
		if len(list) == limit {
			break
		}
	}
	return list, nil
}

// clientsOf returns the clients of a pool, each once: the first list that has it wins.
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

// Keep gives clients affinity to their endpoints as if they were seen just now, and
// returns how many got it. A client that got another endpoint meanwhile gets the former
// one back. If a list is too short, those already on it stay, and the clients that would
// expire last are added.
func Keep(ctx context.Context, fam proxier.Family, clients []proxier.Client) (kept int, err error) {
	pools := map[*proxier.Pool][]proxier.Client{}
	for _, c := range clients {
		pools[c.Pool] = append(pools[c.Pool], c)
	}
	limit := xtables.RecentLimit()
	for p, of := range pools {
		k := keeper{pool: p}
		err := k.read(ctx)
		if err == nil {
			k.choose(of, limit)
			err = k.write(ctx)
		}
		kept += k.kept
		if err != nil {
			return kept, fmt.Errorf("iptables, %s: writing session affinity: %w", fam, err)
		}
	}
	return kept, nil
}

// A keeper writes the affinity of clients of a pool. Its lists are those of the targets,
// in their order; nil: it does not exist, because the endpoint was removed.
type keeper struct {
	pool *proxier.Pool

	present     []map[netip.Addr]bool
	add, remove [][]netip.Addr
	kept        int
}

func (k *keeper) list(target int) string { return filter.RecentList(k.pool, k.pool.Targets[target]) }

// read reads the lists.
func (k *keeper) read(ctx context.Context) error {
	n := len(k.pool.Targets)
	k.present, k.add, k.remove = make([]map[netip.Addr]bool, n), make([][]netip.Addr, n), make([][]netip.Addr, n)
	for i := range k.pool.Targets {
		if err := ctx.Err(); err != nil {
			return err
		}
		recent, err := xtables.ReadRecent(k.list(i))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		k.present[i] = make(map[netip.Addr]bool, len(recent))
		for _, r := range recent {
			k.present[i][r.Addr] = true
		}
	}
	return nil
}

// choose decides which clients to add to which list, in the order in which they expire,
// and which to remove from another list.
func (k *keeper) choose(clients []proxier.Client, limit int) {
	slices.SortStableFunc(clients, func(a, b proxier.Client) int { return cmp.Compare(b.Left, a.Left) })
	for _, c := range clients {
		at := k.present[c.Target]
		if at == nil || limit > 0 && !at[c.Addr] && len(at) >= limit {
			continue
		}
		at[c.Addr] = true
		k.add[c.Target] = append(k.add[c.Target], c.Addr)
		for i, other := range k.present {
			if i != c.Target && other[c.Addr] {
				k.remove[i] = append(k.remove[i], c.Addr)
			}
		}
	}
	for _, list := range k.add {
		slices.Reverse(list)
	}
}

func (k *keeper) write(ctx context.Context) error {
	for i := range k.pool.Targets {
		if err := ctx.Err(); err != nil {
			return err
		}
		if k.present[i] == nil {
			continue
		}
		err := xtables.AddRecent(k.list(i), k.add[i])
		if err == nil {
			err = xtables.RemoveRecent(k.list(i), k.remove[i])
		}
		if errors.Is(err, fs.ErrNotExist) { // the endpoint was removed meanwhile
			continue
		}
		if err != nil {
			return err
		}
		k.kept += len(k.add[i])
	}
	return nil
}
