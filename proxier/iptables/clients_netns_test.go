//go:build netns

package iptables_test

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"svcproxy.dev/svcproxy/netutil/xtables"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/backendtest"
	"svcproxy.dev/svcproxy/proxier/filter"
	"svcproxy.dev/svcproxy/proxier/iptables"
	"svcproxy.dev/svcproxy/source"
)

// Clients that are written are those that are read, except for those for which there is
// no room: they are the ones that would expire first. A client that was seen here
// meanwhile stays, on its former endpoint if it had one.
func TestClientsAreTakenOver(t *testing.T) {
	everywhere(t, func(h *host) {
		s := backendtest.Service{Name: "sticky", Protocol: source.TCP, Affinity: time.Hour, Targets: backendtest.Targets(h.Family, 0, 2)}
		pool, _ := s.Pools()
		route := backendtest.Route(pool, proxier.NoOne, proxier.Reject)
		key := proxier.FrontendKey{Addr: backendtest.Addr(h.Family, "vip", 1), Port: 80}
		res := s.Resolve(&proxier.Frontend{Key: key, Outside: route, Local: route})
		pools, ctx := []*proxier.Pool{pool}, context.Background()
		if list, err := iptables.Clients(ctx, h.Family, pools, 10); err != nil || len(list) > 0 {
			t.Errorf("without rules: %v, %v", list, err)
		}
		h.Sync(h.World.Put(res.Key, res))

		room := xtables.RecentLimit()
		if room < 20 {
			h.Fatalf("a list has room for %d clients", room)
		}
		client := func(n, target int) proxier.Client {
			return proxier.Client{Addr: backendtest.Addr(h.Family, "external", n), Pool: pool, Target: target, Left: time.Duration(1+n) * time.Second}
		}
		// Of those that came here meanwhile one is known from before, on another endpoint.
		newcomers := []netip.Addr{backendtest.Addr(h.Family, "external", 2000), backendtest.Addr(h.Family, "external", 2001), client(room-1, 0).Addr}
		for i, target := range []int{0, 0, 1} {
			if err := xtables.AddRecent(filter.RecentList(pool, pool.Targets[target]), newcomers[i:i+1]); err != nil {
				h.Fatal(err)
			}
		}
		var list []proxier.Client
		want := map[netip.Addr]int{newcomers[0]: 0, newcomers[1]: 0}
		for n := range room + 5 {
			list = append(list, client(n, 0))
			if n >= 7 { // two places are taken
				want[client(n, 0).Addr] = 0
			}
		}
		list = append(list, client(room+5, 1))
		want[client(room+5, 1).Addr] = 1
		if n, err := iptables.Keep(ctx, h.Family, list); err != nil || n != room-1 {
			h.Errorf("%d of %d clients are kept, want %d: %v", n, len(list), room-1, err)
		}
		got, err := iptables.Clients(ctx, h.Family, pools, 10*room)
		if err != nil {
			h.Fatal(err)
		}
		targets := map[netip.Addr]int{}
		for _, c := range got {
			targets[c.Addr] = c.Target
			if c.Left > time.Hour || c.Left < 50*time.Minute {
				h.Errorf("client %s is remembered for %v, want an hour", c.Addr, c.Left)
			}
		}
		if diff := cmp.Diff(want, targets, cmpopts.EquateComparable(netip.Addr{})); diff != "" || len(got) != len(want) {
			h.Errorf("who keeps which endpoint (-want +got):\n%s", diff)
		}
		if recent, err := xtables.ReadRecent(filter.RecentList(pool, pool.Targets[1])); err != nil || len(recent) != 1 {
			h.Errorf("on the second list there are %v, want one: %v", recent, err)
		}
		if got, err = iptables.Clients(ctx, h.Family, pools, 7); err != nil || len(got) != 7 {
			h.Errorf("of at most 7 clients there are %d: %v", len(got), err)
		}
	})
}
