//go:build vm

package ipvs

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"svcproxy/netutil/lvs"
	"svcproxy/proxier"
	"svcproxy/proxier/filter/filtertest"
	"svcproxy/source"
)

// The kernel prints our chains as we write them, and holds what we sent: a
// second look finds nothing to do.
func TestSyncSettles(t *testing.T) {
	everywhere(t, func(h *host) {
		rng := uint32(1)
		pick := func(n int) int { rng = rng*1664525 + 1013904223; return int(rng>>8) % n }
		for i := range 20 {
			res := h.world.Random(pick, i)
			h.world.Put(res.Key, res)
		}
		h.mend()
		h.settled()
		h.wantState()
		before := h.backend.conn.Messages
		h.mend()
		if n := h.backend.conn.Messages - before; n != 0 {
			h.Errorf("%d messages to IPVS with nothing to do", n)
		}
		for range 20 {
			res := h.world.Random(pick, pick(20))
			h.must(h.backend.Sync(h.Context(), h.world.State, h.world.Put(res.Key, res)))
		}
		bound, err := h.backend.device.Addrs(h.fam == proxier.IPv6)
		h.must(err)
		for a := range h.world.BoundAddrs {
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
			res := filtertest.Web(h.fam, 100+i, 10)
			h.world.Put(res.Key, res)
		}
		h.mend()
		service := func(endpoints ...int) *proxier.Resolved {
			res := h.service("web", 1, source.TCP, endpoints...)
			second := *res.Frontends[0]
			second.Key.Addr = h.vip(2).Addr()
			res.Frontends = append(res.Frontends, &second)
			res.BoundAddrs = append(res.BoundAddrs, second.Key.Addr)
			for _, e := range endpoints {
				res.Hairpins = append(res.Hairpins, proxier.Hairpin{AddrPort: h.endpoint(e), Protocol: source.TCP})
			}
			return res
		}
		h.put(service(0, 1))
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
			before, sets := h.backend.conn.Messages, h.backend.kernel.SetMessages()
			h.put(service(tt.endpoints...))
			if n := h.backend.conn.Messages - before; n != tt.messages {
				h.Errorf("%s: %d messages to IPVS, want %d", tt.what, n, tt.messages)
			}
			if n := h.backend.kernel.SetMessages() - sets; n != tt.sets {
				h.Errorf("%s: %d messages to sets, want %d", tt.what, n, tt.sets)
			}
		}
		h.wantState()
		h.settled()
	})
}

// What others damage is mended at the next look, and what is theirs stays.
func TestDamagesAreMended(t *testing.T) {
	everywhere(t, func(h *host) {
		foreign := h.foreign()
		h.put(h.service("web", 1, source.TCP, 0, 1))
		h.put(h.service("dns", 2, source.UDP, 0))
		h.put(h.nodePort("node", 30080, 2))
		web, at := serverWords(h.vip(1)), h.endpoint(0).String()
		damages := []struct{ what, do string }{
			{"all servers removed", "ipvsadm -C"},
			{"device removed", "ip link del svcproxy0"},
			{"servers and device removed", "ipvsadm -C; ip link del svcproxy0"},
			{"destination removed", "ipvsadm -d -t " + web + " -r " + at},
			{"weight changed", "ipvsadm -e -t " + web + " -r " + at + " -m -w 7"},
			{"weight changed by 65536", "ipvsadm -e -t " + web + " -r " + at + " -m -w 65537"},
			{"threshold set", "ipvsadm -e -t " + web + " -r " + at + " -m -w 1 -x 5"},
			{"scheduler changed", "ipvsadm -E -t " + web + " -s rr"},
			{"persistence", "ipvsadm -E -t " + web + " -s wrr -p 60"},
			{"chains flushed and sets destroyed", h.tables() + "; for s in $(ipset list -n | grep ^SVCP-); do ipset destroy $s; done"},
			{"address removed", "ip addr del " + h.vip(1).Addr().String() + " dev svcproxy0"},
			{"address added", "ip addr add " + h.vip(9).Addr().String() + " dev svcproxy0"},
		}
		for _, d := range damages {
			h.run("sh", "-ec", d.do)
			if strings.Contains(d.do, "ipvsadm -C") {
				foreign = h.foreign()
			}
			changes, err := h.backend.Plan(h.Context(), h.world.State)
			h.must(err)
			if len(changes) == 0 {
				h.Errorf("%s: not noticed", d.what)
			}
			for range 3 { // what was added has left, and drains; there are no connections
				h.mend()
			}
			h.forgetDrains()
			h.mend()
			h.settled()
			h.wantState(foreign...)
			if h.Failed() {
				h.Fatalf("after: %s", d.what)
			}
		}
		h.must(h.backend.Cleanup(h.Context()))
		h.want(foreign...)
		if out := h.run("ip", "-o", "link"); strings.Contains(out, "svcproxy0") {
			h.Errorf("after cleanup:\n%s", out)
		}
		if out := h.run("ipset", "list", "-n"); strings.TrimSpace(out) != "FOREIGN" {
			h.Errorf("sets after cleanup: %q", out)
		}
	})
}

func serverWords(at netip.AddrPort) string { return at.String() }

// tables are the words that flush all of iptables.
func (h *host) tables() string {
	tool := "iptables"
	if h.fam == proxier.IPv6 {
		tool = "ip6tables"
	}
	var words []string
	for _, table := range []string{"nat", "filter", "mangle"} {
		words = append(words, fmt.Sprintf("%s -t %s -F; %s -t %s -X", tool, table, tool, table))
	}
	return strings.Join(words, "; ")
}

// foreign makes what somebody else has, and returns it: servers on an address of
// another device, one of them on a port that a service has elsewhere.
func (h *host) foreign() []string {
	h.Helper()
	at := netip.AddrPortFrom(h.endpoint(3).Addr(), 30080)
	h.run("sh", "-c", "ipset create FOREIGN hash:ip 2>/dev/null || true")
	h.ipvsadm("-A -t " + at.String() + " -s lc")
	h.ipvsadm("-a -t " + at.String() + " -r " + h.endpoint(1).String() + " -m -w 5")
	return []string{"-A -t " + at.String() + " -s lc", "-a -t " + at.String() + " -r " + h.endpoint(1).String() + " -m -w 5"}
}

// When a foreign server goes, the service gets its own.
func TestForeignServerGoes(t *testing.T) {
	everywhere(t, func(h *host) {
		at := netip.AddrPortFrom(h.world.Host.NodePortAddrs[0], 30080)
		h.ipvsadm("-A -t " + at.String() + " -s lc")
		res := h.nodePort("node", 30080, 0)
		h.world.Put(res.Key, res)
		h.unserved(nil, 1)
		h.ipvsadm("-D -t " + at.String())
		h.mend()
		h.wantState()
		h.settled()
	})
}

// One server that the kernel refuses keeps no other from being served, and costs
// those that change nothing.
func TestMissingScheduler(t *testing.T) {
	everywhere(t, func(h *host) {
		nosuch := "nosuch"
		if h.fam == proxier.IPv6 {
			nosuch = "longer-than-any-other" // EINVAL, which has no name of its own
		}
		h.mend()
		with := func(scheduler string, n int, endpoints ...int) *proxier.Resolved {
			res := h.service(fmt.Sprint("s", n), n, source.TCP, endpoints...)
			res.Pools[0].Scheduler = scheduler
			return res
		}
		put := func(res *proxier.Resolved) *proxier.Delta { return h.world.Put(res.Key, res) }
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
		before := h.backend.conn.Messages
		h.unserved(put(with("", 2, 1, 2)), 2)
		if n := h.backend.conn.Messages - before; n != 1 {
			h.Errorf("%d messages for an endpoint more, want 1", n)
		}
		vip := func(n int) string { return h.vip(n).String() }
		h.want(
			"-A -t "+vip(2)+" -s wrr", "-a -t "+vip(2)+" -r "+h.endpoint(1).String()+" -m -w 1", "-a -t "+vip(2)+" -r "+h.endpoint(2).String()+" -m -w 1",
			"-A -t "+vip(3)+" -s rr", "-a -t "+vip(3)+" -r "+h.endpoint(1).String()+" -m -w 0", "-a -t "+vip(3)+" -r "+h.endpoint(2).String()+" -m -w 1")
		h.unserved(put(with("sh", 1, 0)), 1)
		h.wantServed(1, 2, 3)
		h.must(h.backend.Sync(h.Context(), h.world.State, put(with("lc", 3, 2))))
		h.forgetDrains()
		h.settled()
	})
}

// wantServed wants these VIPs, and no others, to be let through to IPVS.
func (h *host) wantServed(vips ...int) {
	h.Helper()
	for n := range 4 {
		_, listing, _ := strings.Cut(h.run("ipset", "list", map[proxier.Family]string{proxier.IPv4: "SVCP-SERVED-4", proxier.IPv6: "SVCP-SERVED-6"}[h.fam]), "Members:\n")
		if got, want := strings.Contains(listing, h.vip(n).Addr().String()+","), slices.Contains(vips, n); got != want {
			h.Errorf("VIP %d is let through: %v, want %v:\n%s", n, got, want, listing)
		}
	}
}

// unserved syncs and wants so many servers not to be had.
func (h *host) unserved(delta *proxier.Delta, n int) {
	h.Helper()
	var u *proxier.Unserved
	if err := h.backend.Sync(h.Context(), h.world.State, delta); !errors.As(err, &u) || u.N != n {
		h.Fatalf("error %v, want %d servers not to be had", err, n)
	}
}

func TestTimeoutsAreSet(t *testing.T) {
	h := newHost(t, proxier.IPv4)
	h.opts.TCPTimeout, h.opts.UDPTimeout = 1234e9, 99e9
	h.restart()
	h.mend()
	got, err := h.backend.conn.Timeouts(h.Context())
	h.must(err)
	if got.TCP != 1234e9 || got.UDP != 99e9 {
		h.Errorf("time-outs %v", got)
	}
	before := h.backend.conn.Messages
	h.mend()
	if n := h.backend.conn.Messages - before; n != 0 {
		h.Errorf("%d messages where the time-outs are as wanted", n)
	}
}

// Both families share the device: it goes with the last address.
func TestFamiliesShareTheDevice(t *testing.T) {
	four := newHost(t, proxier.IPv4)
	six := &host{TB: t, fam: proxier.IPv6, world: filtertest.NewWorld(proxier.IPv6), opts: four.opts}
	six.backend = six.open()
	four.put(four.service("web", 1, source.TCP, 0))
	six.put(six.service("web", 1, source.TCP, 0))
	four.must(four.backend.Cleanup(t.Context()))
	six.settled()
	if list, err := six.backend.device.Addrs(true); err != nil || len(list) != 1 {
		t.Errorf("addresses of the other family: %v, %v", list, err)
	}
	if list := four.servers(); len(list) != 2 || !strings.Contains(list[0], "fd00") {
		t.Errorf("servers left: %q", list)
	}
	six.must(six.backend.Cleanup(t.Context()))
	if there, err := six.backend.device.Find(); there || err != nil {
		t.Errorf("the device after both have gone: %v, %v", there, err)
	}
	six.want()
}

// The kernel without servers has nothing to clean up, and no error.
func TestCleanupOfNothing(t *testing.T) {
	everywhere(t, func(h *host) {
		h.must(h.backend.Cleanup(h.Context()))
		h.must(Cleanup(h.Context(), h.fam, h.opts.StateDir, nil))
		if there, err := h.backend.conn.Has(h.Context(), lvs.Key{Addr: h.vip(1).Addr(), Protocol: 6, Port: 80}); there || err != nil {
			h.Errorf("a server: %v, %v", there, err)
		}
	})
}
