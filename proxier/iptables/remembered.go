package iptables

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"

	"svcproxy.dev/svcproxy/netutil/xtables"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/filter/layout"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// Remembered returns the endpoint of a pool that session affinity keeps for a client, in either variant of iptables;
// nil: none. Of several the first wins, as in the rules.
func Remembered(ctx context.Context, p *policy.Pool, client netip.Addr) (*proxier.Remembered, error) {
	for _, t := range p.Targets {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		list, err := xtables.ReadRecent(layout.RecentList(p, t))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("iptables, %s: reading session affinity: %w", policy.FamilyOf(client), err)
		}
		for _, r := range list {
			if left := p.Affinity - r.Age; r.Addr == client && left > 0 {
				return &proxier.Remembered{Target: t.AddrPort, Left: left}, nil
			}
		}
	}
	return nil, nil
}
