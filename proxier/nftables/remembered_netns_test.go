//go:build netns

package nftables_test

import (
	"context"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/proxier/nftables"
)

// The table tells which endpoint each client keeps, and of who never came nothing.
func TestRememberedClientsAreListed(t *testing.T) {
	packets(t, 4, func(h *host) {
		res := h.service("sticky", 10, time.Hour, ones(4)...)
		pool, ctx := res.Pools[0], context.Background()
		if got, err := nftables.Remembered(ctx, pool, h.address(100)); got != nil || err != nil {
			h.Errorf("without a table: %+v, %v", got, err)
		}
		h.Sync(h.World.Put(res.Key, res))
		for client := range 4 {
			want := pool.Targets[h.mustAsk(h.at(10), client)].AddrPort()
			got, err := nftables.Remembered(ctx, pool, h.address(100+client))
			if err != nil || got == nil || got.Target != want || got.Left > time.Hour || got.Left < 50*time.Minute {
				h.Errorf("client %d keeps %+v, want %s for an hour: %v", client, got, want, err)
			}
		}
		if got, err := nftables.Remembered(ctx, pool, h.address(99)); got != nil || err != nil {
			h.Errorf("one that never came: %+v, %v", got, err)
		}
		one := h.service("sticky", 10, time.Hour, 1)
		h.Sync(h.World.Put(one.Key, one))
		left := 0
		for client := range clients {
			if got, _ := nftables.Remembered(ctx, one.Pools[0], h.address(100+client)); got != nil && got.Target != one.Pools[0].Targets[0].AddrPort() {
				left++
			}
		}
		if left > 0 {
			h.Errorf("%d clients keep endpoints that have left", left)
		}
	})
}
