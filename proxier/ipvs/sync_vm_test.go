//go:build vm

package ipvs

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/netutil/lvs"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/backendtest"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// The kernel prints our chains as we write them, and holds what we sent: a
// second look finds nothing to do.
func TestSyncSettles(t *testing.T) {
	everywhere(t, func(h *host) {
		rng := uint32(1)
		pick := func(n int) int { rng = rng*1664525 + 1013904223; return int(rng>>8) % n }
		for i := range 20 {
			res := h.World.Random(pick, i)
			h.World.Put(res.Key, res)
		}
		h.Sync(nil)
		h.settled()
		h.wantState()
		before := h.Backend.conn.Messages
		h.Sync(nil)
		if n := h.Backend.conn.Messages - before; n != 0 {
			h.Errorf("%d messages to IPVS with nothing to do", n)
		}
		for range 20 {
			res := h.World.Random(pick, pick(20))
			h.Sync(h.World.Put(res.Key, res))
		}
		bound, err := h.Backend.device.Addrs(h.Family == policy.IPv6)
		h.Must(err)
		for a := range h.World.BoundAddrs {
			if !slices.Contains(bound, a) {
				h.Errorf("address %v is not bound", a)
			}
		}
	})
}

// A change of one endpoint costs one message for each virtual server of its
// service, whatever else there is.
func TestOneEndpointOneMessage(t *testing.T) {
	everywhere(t, func(h *host) {
		for i := range 300 {
			res := backendtest.Web(h.Family, 100+i, 10)
			h.World.Put(res.Key, res)
		}
		h.Sync(nil)
		service := func(endpoints ...int) *policy.Resolved {
			res := h.service("web", 1, source.TCP, endpoints...)
			second := *res.Frontends[0]
			second.Key.Addr = h.vip(2).Addr()
			res.Frontends = append(res.Frontends, &second)
			res.BoundAddrs = append(res.BoundAddrs, second.Key.Addr)
			res.HairpinPools = res.Pools
			return res
		}
		h.Put(service(0, 1))
		for _, tt := range []struct {
			what      string
			endpoints []int
			messages  int
			sets      int
		}{
			{"one more", []int{0, 1, 2}, 2, 1},
			{"one less", []int{0, 2}, 2, 1},
			{"one comes back", []int{0, 1, 2}, 2, 1},
			{"nothing", []int{0, 1, 2}, 0, 0},
		} {
			before, sets := h.Backend.conn.Messages, h.Backend.kernel.SetMessages()
			h.Put(service(tt.endpoints...))
			if n := h.Backend.conn.Messages - before; n != tt.messages {
				h.Errorf("%s: %d messages to IPVS, want %d", tt.what, n, tt.messages)
			}
			if n := h.Backend.kernel.SetMessages() - sets; n != tt.sets {
				h.Errorf("%s: %d messages to sets, want %d", tt.what, n, tt.sets)
			}
		}
		h.wantState()
		h.settled()
	})
}

// When a foreign server goes, the service gets its own.
func TestForeignServerGoes(t *testing.T) {
	everywhere(t, func(h *host) {
		at := netip.AddrPortFrom(h.World.Host.NodePortAddrs[0], 30080)
		h.ipvsadm("-A -t " + at.String() + " -s lc")
		res := h.nodePort("node", 30080, 0)
		h.World.Put(res.Key, res)
		h.unserved(nil, 1)
		h.ipvsadm("-D -t " + at.String())
		h.Sync(nil)
		h.wantState()
		h.settled()
	})
}

// One server that the kernel refuses keeps no other from being served, and costs
// those that change nothing.
func TestMissingScheduler(t *testing.T) {
	everywhere(t, func(h *host) {
		nosuch := "nosuch"
		if h.Family == policy.IPv6 {
			nosuch = "longer-than-any-other" // EINVAL, which has no name of its own
		}
		h.Sync(nil)
		with := func(scheduler string, n int, endpoints ...int) *policy.Resolved {
			res := h.service(fmt.Sprint("s", n), n, source.TCP, endpoints...)
			res.Pools[0].Scheduler = scheduler
			return res
		}
		put := func(res *policy.Resolved) *policy.Delta { return h.World.Put(res.Key, res) }
		h.unserved(put(with(nosuch, 1, 0)), 1)
		h.wantServed() // or daemons of the host would answer
		h.unserved(put(with("", 2, 1)), 1)
		h.unserved(put(with("rr", 3, 1)), 1)
		h.wantServed(2, 3)
		h.unserved(nil, 1)
		h.wantServed(2, 3)
		h.unserved(put(with(nosuch, 1, 0, 3)), 1)
		h.wantServed(2, 3)
		h.unserved(put(with(nosuch, 3, 1)), 2) // has one that stays
		h.unserved(put(with(nosuch, 3, 2)), 2)
		h.unserved(nil, 2)
		before := h.Backend.conn.Messages
		h.unserved(put(with("", 2, 1, 2)), 2)
		if n := h.Backend.conn.Messages - before; n != 1 {
			h.Errorf("%d messages for an endpoint more, want 1", n)
		}
		vip := func(n int) string { return h.vip(n).String() }
		h.want(
			"-A -t "+vip(2)+" -s wrr", "-a -t "+vip(2)+" -r "+h.endpoint(1).String()+" -m -w 1", "-a -t "+vip(2)+" -r "+h.endpoint(2).String()+" -m -w 1",
			"-A -t "+vip(3)+" -s rr", "-a -t "+vip(3)+" -r "+h.endpoint(1).String()+" -m -w 0", "-a -t "+vip(3)+" -r "+h.endpoint(2).String()+" -m -w 1")
		h.unserved(put(with("sh", 1, 0)), 1)
		h.wantServed(1, 2, 3)
		h.Sync(put(with("lc", 3, 2)))
		h.forgetDrains()
		h.settled()
	})
}

// wantServed wants these VIPs, and no others, to be let through to IPVS.
func (h *host) wantServed(vips ...int) {
	h.Helper()
	for n := range 4 {
		_, listing, _ := strings.Cut(run(h, "ipset", "list", map[policy.Family]string{policy.IPv4: "SVCP-SERVED-4", policy.IPv6: "SVCP-SERVED-6"}[h.Family]), "Members:\n")
		if got, want := strings.Contains(listing, h.vip(n).Addr().String()+","), slices.Contains(vips, n); got != want {
			h.Errorf("VIP %d is let through: %v, want %v:\n%s", n, got, want, listing)
		}
	}
}

// unserved syncs and wants so many unserved servers.
func (h *host) unserved(delta *policy.Delta, n int) {
	h.Helper()
	var u *proxier.PartialError
	if err := h.Backend.Sync(h.Context(), h.World.State, delta); !errors.As(err, &u) || u.N != n {
		h.Fatalf("error %v, want %d unserved servers", err, n)
	}
}

func TestTimeoutsAreSet(t *testing.T) {
	h := newHost(t, policy.IPv4)
	h.opts.TCPTimeout, h.opts.UDPTimeout = 1234e9, 99e9
	h.Restart()
	h.Sync(nil)
	got, err := h.Backend.conn.Timeouts(h.Context())
	h.Must(err)
	if got.TCP != 1234e9 || got.UDP != 99e9 {
		h.Errorf("timeouts %v", got)
	}
	before := h.Backend.conn.Messages
	h.Sync(nil)
	if n := h.Backend.conn.Messages - before; n != 0 {
		h.Errorf("%d messages where the timeouts are as wanted", n)
	}
}

// Both families share the device: it goes with the last address.
func TestFamiliesShareTheDevice(t *testing.T) {
	four := newHost(t, policy.IPv4)
	six := hostWith(t, policy.IPv6, four.opts)
	four.Put(four.service("web", 1, source.TCP, 0))
	six.Put(six.service("web", 1, source.TCP, 0))
	four.Must(four.Backend.Cleanup(t.Context()))
	six.settled()
	if list, err := six.Backend.device.Addrs(true); err != nil || len(list) != 1 {
		t.Errorf("addresses of the other family: %v, %v", list, err)
	}
	if list := four.servers(); len(list) != 2 || !strings.Contains(list[0], "fd00") {
		t.Errorf("servers left: %q", list)
	}
	six.Must(six.Backend.Cleanup(t.Context()))
	if there, err := six.Backend.device.Find(); there || err != nil {
		t.Errorf("the device after both have gone: %v, %v", there, err)
	}
	six.want()
}

// The kernel without servers has nothing to clean up, and no error.
func TestCleanupWithoutServersSucceeds(t *testing.T) {
	everywhere(t, func(h *host) {
		h.Must(h.Backend.Cleanup(h.Context()))
		h.Must(Cleanup(h.Context(), h.Family, h.opts.StateDir, nil))
		if there, err := h.Backend.conn.Has(h.Context(), lvs.Key{Addr: h.vip(1).Addr(), Protocol: 6, Port: 80}); there || err != nil {
			h.Errorf("a server: %v, %v", there, err)
		}
	})
}
