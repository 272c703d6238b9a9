//go:build vm

package ipvs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"testing"

	"github.com/vishvananda/netns"

	"svcproxy.dev/svcproxy/netutil/lvs"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// Lists are torn while another namespace removes servers of its own. A foreign
// server that one leaves out is not taken for missing, which would have it recorded as ours.
func TestTornListsMakeNoForeignServerOurs(t *testing.T) {
	const services, looks = 600, 10 // three pieces of a list
	h := newHost(t, policy.IPv4)
	for i := range services {
		h.World.Put(h.service(fmt.Sprint("s", i), i, source.TCP, 0).Key, h.service(fmt.Sprint("s", i), i, source.TCP, 0))
		h.Must(h.Backend.conn.AddServer(t.Context(), lvs.Server{Key: tcp(h.vip(i).String()), Scheduler: "sh"}))
	}
	defer h.disturb()()
	torn := 0
	for range looks {
		list, err := h.Backend.conn.Servers(t.Context(), false, func(func(lvs.Key) bool) {})
		if h.Must(err); len(list) < services {
			torn++
		}
		p, err := h.Backend.takeSnapshot(t.Context(), h.World.State, h.opts, nil)
		if h.Must(err); len(p.claimed) > 0 || len(p.foreign) != services {
			t.Fatalf("of %d servers %d are foreign, and %v are to be ours", services, len(p.foreign), p.claimed)
		}
	}
	t.Logf("%d of %d lists were torn", torn, looks)
}

// disturb makes and removes servers in another namespace until stop.
func (h *host) disturb() (stop func()) {
	ctx, cancel := context.WithCancel(h.Context())
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		other, err := netns.New()
		if err != nil {
			done <- err
			return
		}
		defer other.Close()
		c, err := lvs.Dial(ctx)
		for i := 0; err == nil && ctx.Err() == nil; i++ {
			const servers = 100
			key := lvs.Key{Addr: netip.AddrFrom4([4]byte{10, 97, 0, byte(i % servers)}), Protocol: uint8(source.TCP), Port: 80}
			if i/servers%2 == 0 {
				err = c.AddServer(ctx, lvs.Server{Key: key, Scheduler: "rr"})
			} else {
				err = c.DeleteServer(ctx, key)
			}
		}
		if ctx.Err() != nil {
			err = nil
		}
		done <- errors.Join(err, c.Close())
	}()
	return func() { cancel(); h.Must(<-done) }
}
