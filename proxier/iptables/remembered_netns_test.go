//go:build netns

package iptables_test

import (
	"context"
	"os"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/proxier/backendtest"
	"svcproxy.dev/svcproxy/proxier/filter/layout"
	"svcproxy.dev/svcproxy/proxier/iptables"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// The lists of clients tell which endpoint a client keeps, and of who is on none nothing.
func TestRememberedClientsAreListed(t *testing.T) {
	everywhere(t, func(h *host) {
		s := backendtest.Service{Name: "sticky", Protocol: source.TCP, Affinity: time.Hour, Targets: backendtest.Targets(h.Family, 0, 2)}
		pool, _ := s.Pools()
		route := backendtest.Route(pool, policy.NoOne, policy.Reject)
		res := s.Resolve(&policy.Frontend{Key: policy.FrontendKey{Addr: backendtest.Addr(h.Family, "vip", 1), Port: 80}, Outside: route, FromLocal: route})
		client, ctx := backendtest.Addr(h.Family, "external", 7), context.Background()
		if got, err := iptables.Remembered(ctx, pool, client); got != nil || err != nil {
			h.Errorf("without rules: %+v, %v", got, err)
		}
		h.Sync(h.World.Put(res.Key, res))
		if got, err := iptables.Remembered(ctx, pool, client); got != nil || err != nil {
			h.Errorf("one that never came: %+v, %v", got, err)
		}
		list := "/proc/thread-self/net/xt_recent/" + layout.RecentList(pool, pool.Targets[1])
		fatal.If(h, os.WriteFile(list, []byte("+"+client.String()+"\n"), 0o600))
		got, err := iptables.Remembered(ctx, pool, client)
		if err != nil || got == nil || got.Target != pool.Targets[1].AddrPort() || got.Left > time.Hour || got.Left < 50*time.Minute {
			h.Errorf("got %+v, want %s for an hour: %v", got, pool.Targets[1], err)
		}
	})
}
