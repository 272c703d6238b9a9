//go:build vm

package ipvs

import (
	"errors"
	"net"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"svcproxy/netutil/lvs"
	"svcproxy/proxier"
	"svcproxy/source"
)

// draining returns the line of an endpoint that drains.
func (h *host) draining(vip, endpoint int) string {
	return "-a -t " + h.vip(vip).String() + " -r " + h.endpoint(endpoint).String() + " -m -w 0"
}

func (h *host) key(vip int) lvs.Key {
	return lvs.Key{Addr: h.vip(vip).Addr(), Protocol: uint8(source.TCP), Port: 80}
}

// connectTo returns a connection that lasts to an endpoint of the first VIP.
func (h *host) connectTo(endpoint int) net.Conn {
	h.Helper()
	for range 20 {
		if c, n := h.mustDial(h.vip(1)); n == endpoint {
			return c
		} else {
			c.Close()
		}
	}
	h.Fatalf("endpoint %d never answered", endpoint)
	return nil
}

// What leaves keeps its connections until they end; what comes back gets new ones.
func TestEndpointsDrain(t *testing.T) {
	everywhere(t, func(h *host) {
		h.listen(2)
		h.put(h.service("web", 1, source.TCP, 0, 1))
		c := h.connectTo(0)

		h.put(h.service("web", 1, source.TCP, 1))
		h.wantState(h.draining(1, 0))
		for range 10 {
			if _, n := h.mustDial(h.vip(1)); n != 1 {
				h.Fatal("a new connection reached the endpoint that left")
			}
		}
		if !h.goesOn(c) {
			h.Error("the connection did not go on")
		}
		time.Sleep(lag)
		h.mend()
		h.wantState(h.draining(1, 0)) // in use
		h.settled()

		h.put(h.service("web", 1, source.TCP, 0, 1))
		h.wantState()
		h.put(h.service("web", 1, source.TCP, 1))
		c.Close()
		h.eventually("the destination goes when it is idle", func() bool { return !slices.Contains(h.servers(), h.draining(1, 0)) })
		h.wantState()
		if len(h.backend.record.drains) != 0 {
			h.Errorf("recorded though nothing drains: %v", h.backend.record.drains)
		}
	})
}

func TestDrainsEnd(t *testing.T) {
	everywhere(t, func(h *host) {
		h.opts.DrainTimeout = 3 * time.Second
		h.restart()
		h.listen(2)
		h.put(h.service("web", 1, source.TCP, 0, 1))
		c := h.connectTo(0)
		h.put(h.service("web", 1, source.TCP, 1))
		if !h.goesOn(c) {
			h.Error("the connection did not go on")
		}
		time.Sleep(h.opts.DrainTimeout)
		h.mend()
		h.wantState()
		if h.goesOn(c) {
			h.Error("the connection goes on after its time")
		}
	})
}

// Connections to a service that is removed go on; new ones are refused.
func TestServicesDrain(t *testing.T) {
	everywhere(t, func(h *host) {
		h.listen(2)
		web := h.service("web", 1, source.TCP, 0)
		h.put(web)
		c := h.connectTo(0)
		h.remove(web)
		h.want("-A -t "+h.vip(1).String()+" -s wrr", h.draining(1, 0))
		if !h.goesOn(c) {
			h.Error("the connection did not go on")
		}
		if _, _, err := h.dial(h.vip(1)); !errors.Is(err, syscall.ECONNREFUSED) {
			h.Errorf("a new connection: %v, want a refusal", err)
		}
		h.mend()
		h.settled()
		h.restart()
		h.mend()
		h.want("-A -t "+h.vip(1).String()+" -s wrr", h.draining(1, 0))
		if !h.goesOn(c) {
			h.Error("the connection did not go on after a restart")
		}
		c.Close()
		h.eventually("the server goes when it is idle", func() bool { return len(h.servers()) == 0 })
		if list, err := h.backend.device.Addrs(h.fam == proxier.IPv6); err != nil || len(list) != 0 {
			h.Errorf("addresses left: %v, %v", list, err)
		}
		h.settled()
	})
}

// A restart goes on with drains where they were, and takes no leftover weight of
// 0 for what is wanted.
func TestRestartKnowsDrains(t *testing.T) {
	everywhere(t, func(h *host) {
		h.listen(2)
		h.put(h.service("web", 1, source.TCP, 0, 1))
		h.connectTo(0)
		h.put(h.service("web", 1, source.TCP, 1))
		since, ok := h.backend.record.drains.since(h.key(1), h.endpoint(0))
		if !ok {
			h.Fatal("no drain is known")
		}
		h.restart()
		h.mend()
		h.wantState(h.draining(1, 0))
		if again, ok := h.backend.record.drains.since(h.key(1), h.endpoint(0)); !ok || !again.Equal(since) {
			h.Errorf("after a restart it drains since %v (known: %v), before since %v", again, ok, since)
		}
		back := h.service("web", 1, source.TCP, 0, 1)
		h.world.Put(back.Key, back)
		h.restart()
		h.mend()
		h.wantState()
	})
}

// UDP knows no end of a connection: destinations and servers go at once.
func TestUDPDoesNotDrain(t *testing.T) {
	everywhere(t, func(h *host) {
		h.put(h.service("dns", 1, source.UDP, 0, 1))
		h.put(h.service("dns", 1, source.UDP, 1))
		h.wantState()
		h.remove(h.service("dns", 1, source.UDP, 1))
		h.want()
		h.settled()
	})
}

// Leaving the mode: connections go on, nothing else is left, and the rules stay
// for the next mode until they are removed.
func TestRetire(t *testing.T) {
	everywhere(t, func(h *host) {
		h.listen(1)
		h.put(h.service("web", 1, source.TCP, 0))
		h.put(h.service("dns", 2, source.UDP, 0))
		h.put(h.nodePort("node", 30080, 0))
		c := h.connectTo(0)
		done, err := h.backend.Retire(t.Context())
		if done || err != nil {
			h.Fatalf("Retire gave %v, %v", done, err)
		}
		if !slices.Contains(h.servers(), h.draining(1, 0)) || strings.Contains(strings.Join(h.servers(), " "), "-u") {
			h.Errorf("servers: %q", h.servers())
		}
		if !h.goesOn(c) {
			h.Error("the connection did not go on")
		}
		if out := h.run("ipset", "list", "-n"); !strings.Contains(out, "SVCP-SERVED") {
			h.Error("the sets are gone")
		}
		// A namespace whose rules do not ask for connection tracking has none; those
		// of the next mode do.
		h.run("nft", "add table inet next; add chain inet next c { type filter hook input priority 0; }; add rule inet next c ct state invalid counter")
		h.must(h.backend.RemoveRules(t.Context()))
		if out := h.run("ipset", "list", "-n"); strings.Contains(out, "SVCP-") {
			h.Errorf("sets left: %s", out)
		}
		if !h.goesOn(c) {
			h.Error("the connection did not go on without rules")
		}
		c.Close()
		for end := time.Now().Add(time.Minute); !done && time.Now().Before(end); time.Sleep(time.Second) {
			done, err = h.backend.Retire(t.Context())
			h.must(err)
		}
		if !done {
			h.Errorf("never done: %q", h.servers())
		}
		h.want()
		if out := h.run("ip", "-o", "link"); strings.Contains(out, "svcproxy0") {
			h.Errorf("the device is left:\n%s", out)
		}
		h.mend() // and back
		h.wantState()
	})
}
