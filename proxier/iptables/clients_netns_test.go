//go:build netns

package iptables_test

import (
	"context"
	"testing"
	"time"

	"svcproxy/netutil/xtables"
	"svcproxy/proxier"
	"svcproxy/proxier/filter/filtertest"
	"svcproxy/proxier/iptables"
	"svcproxy/source"
)

// Clients that are written are those that are read, but for those for whom there is
// no room: they are the ones that would have been forgotten first.
func TestClientsAreTakenOver(t *testing.T) {
	everywhere(t, func(h *host) {
		s := filtertest.Service{Name: "sticky", Protocol: source.TCP, Affinity: time.Hour, Targets: filtertest.Targets(h.fam, 0, 2)}
		pool, _ := s.Pools()
		leg := filtertest.Leg(pool, proxier.NoOne, proxier.Reject)
		key := proxier.FrontendKey{Addr: filtertest.Addr(h.fam, "vip", 1), Port: 80}
		res := s.Resolve(&proxier.Frontend{Key: key, Outside: leg, Local: leg})
		pools, ctx := []*proxier.Pool{pool}, context.Background()
		if list, err := iptables.Clients(ctx, h.fam, pools, 10); err != nil || len(list) > 0 {
			t.Errorf("without rules: %v, %v", list, err)
		}
		h.sync(h.world.Put(res.Key, res))

		room := xtables.RecentLimit()
		if room < 20 {
			h.Fatalf("a list has room for %d clients", room)
		}
		client := func(n, target int) proxier.Client {
			return proxier.Client{Addr: filtertest.Addr(h.fam, "external", n), Pool: pool, Target: target, Left: time.Duration(1+n) * time.Second}
		}
		want := map[proxier.Client]bool{}
		var list []proxier.Client
		for n := range room + 5 {
			list = append(list, client(n, 0))
			want[client(n, 0)] = n >= 5
		}
		list = append(list, client(room+5, 1))
		want[client(room+5, 1)] = true
		if n, err := iptables.Keep(ctx, h.fam, list); err != nil || n != room+1 {
			h.Errorf("%d of %d clients are kept, want %d: %v", n, len(list), room+1, err)
		}
		got, err := iptables.Clients(ctx, h.fam, pools, 10*room)
		if err != nil || len(got) != room+1 {
			h.Errorf("%d clients are known, want %d: %v", len(got), room+1, err)
		}
		for _, c := range got {
			if c.Left > time.Hour || c.Left < 50*time.Minute {
				h.Errorf("client %s is remembered for %v, want an hour", c.Addr, c.Left)
			}
			for n := range room + 6 {
				if w := client(n, c.Target); w.Addr == c.Addr && !want[w] {
					h.Errorf("client %s keeps target %d", c.Addr, c.Target)
				}
			}
		}
		if got, err = iptables.Clients(ctx, h.fam, pools, 7); err != nil || len(got) != 7 {
			h.Errorf("of at most 7 clients there are %d: %v", len(got), err)
		}
	})
}
