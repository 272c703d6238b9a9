//go:build vm

package ipvs

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/internal/echotest"
	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/netutil/lvs"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
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
		h.Put(h.service("web", 1, source.TCP, 0, 1))
		c := h.connectTo(0)

		h.Put(h.service("web", 1, source.TCP, 1))
		h.wantState(h.draining(1, 0))
		for range 10 {
			if _, n := h.mustDial(h.vip(1)); n != 1 {
				h.Fatal("a new connection reached the endpoint that left")
			}
		}
		if !h.goesOn(c) {
			h.Error("the connection did not go on")
		}
		time.Sleep(counterLag)
		h.Sync(nil)
		h.wantState(h.draining(1, 0)) // in use
		h.settled()

		h.Put(h.service("web", 1, source.TCP, 0, 1))
		h.wantState()
		h.Put(h.service("web", 1, source.TCP, 1))
		c.Close()
		h.eventually("the destination goes when it is idle", func() bool { return !slices.Contains(h.servers(), h.draining(1, 0)) })
		h.wantState()
		if len(h.Backend.record.drains) != 0 {
			h.Errorf("recorded though nothing drains: %v", h.Backend.record.drains)
		}
	})
}

func TestDrainsEnd(t *testing.T) {
	everywhere(t, func(h *host) {
		h.opts.DrainTimeout = 3 * time.Second
		h.Restart()
		h.listen(2)
		h.Put(h.service("web", 1, source.TCP, 0, 1))
		c := h.connectTo(0)
		h.Put(h.service("web", 1, source.TCP, 1))
		if !h.goesOn(c) {
			h.Error("the connection did not go on")
		}
		began := h.Backend.record.drains[h.key(1)][h.endpoint(0)]
		if due := h.Backend.NextDue(); due.Sub(began) > h.opts.DrainTimeout {
			h.Errorf("the drain is due %v after it began, later than its end", due.Sub(began))
		}
		h.dueUntil("the drain has ended", func() bool { return !slices.Contains(h.servers(), h.draining(1, 0)) })
		h.wantState()
		h.settled()
		if h.goesOn(c) {
			h.Error("the connection goes on after its time")
		}
	})
}

// dueUntil lets the Backend do what is due, with deltas that are empty, until
// check returns true.
func (h *host) dueUntil(what string, check func() bool) {
	h.Helper()
	for end := time.Now().Add(time.Minute); !check(); {
		due := h.Backend.NextDue()
		if due.IsZero() || due.After(end) {
			h.Fatalf("next due %v, and never: %s; %q", due, what, h.servers())
		}
		time.Sleep(time.Until(due))
		h.Sync(&policy.Delta{})
	}
	if due := h.Backend.NextDue(); !due.IsZero() {
		h.Errorf("%s, and still due: %v", what, due)
	}
}

// What drains goes when it is idle, with the server and its address, and no look
// at everything is needed for that.
func TestIdleDrainsEndWithoutALook(t *testing.T) {
	everywhere(t, func(h *host) {
		h.listen(1)
		web := h.service("web", 1, source.TCP, 0)
		h.Put(web)
		h.Put(h.service("other", 2, source.TCP, 0))
		c := h.connectTo(0)
		h.Remove(web)
		time.Sleep(time.Until(h.Backend.NextDue()))
		h.Sync(&policy.Delta{})
		h.wantState("-A -t "+h.vip(1).String()+" -s wrr", h.draining(1, 0)) // in use
		c.Close()
		h.dueUntil("nothing drains", func() bool { return !slices.Contains(h.servers(), h.draining(1, 0)) })
		h.wantState()
		h.settled()
	})
}

// listenSCTP makes an endpoint echo what it gets.
func (h *host) listenSCTP(endpoint int) {
	h.Helper()
	fd := h.socketSCTP()
	h.Must(unix.Bind(fd, sockaddr(h.endpoint(endpoint))))
	h.Must(unix.Listen(fd, 1))
	f := os.NewFile(uintptr(fd), "sctp")
	defer f.Close()
	l, err := net.FileListener(f)
	h.Must(err)
	var servers echotest.Servers
	h.Cleanup(servers.Close)
	servers.Accept(l, echotest.Echo)
}

func (h *host) connectSCTP(to netip.AddrPort) net.Conn {
	h.Helper()
	fd := h.socketSCTP()
	h.Must(unix.Connect(fd, sockaddr(to)))
	f := os.NewFile(uintptr(fd), "sctp")
	defer f.Close()
	c, err := net.FileConn(f)
	h.Must(err)
	h.Cleanup(func() { c.Close() })
	return c
}

func (h *host) socketSCTP() int {
	h.Helper()
	domain := unix.AF_INET
	if h.Family == policy.IPv6 {
		domain = unix.AF_INET6
	}
	fd, err := unix.Socket(domain, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
	h.Must(err)
	return fd
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}
	}
	return &unix.SockaddrInet6{Addr: a.Addr().As16(), Port: int(a.Port())}
}

// Connections of SCTP go on like those of TCP.
func TestSCTPDrains(t *testing.T) {
	if out, err := exec.Command("modprobe", "sctp").CombinedOutput(); err != nil {
		t.Fatalf("modprobe sctp: %v\n%s", err, out)
	}
	everywhere(t, func(h *host) {
		h.opts.DrainTimeout = 3 * time.Second
		h.Restart()
		h.listenSCTP(0)
		h.Put(h.service("sig", 1, source.SCTP, 0))
		c := h.connectSCTP(h.vip(1))
		if !h.goesOn(c) {
			h.Fatal("no echo")
		}
		h.Put(h.service("sig", 1, source.SCTP, 1))
		h.wantState(strings.Replace(h.draining(1, 0), "-t", "--sctp-service", 1))
		if !h.goesOn(c) {
			h.Error("the connection did not go on")
		}
		h.dueUntil("the drain has ended", func() bool { return !strings.Contains(strings.Join(h.servers(), "\n"), "-w 0") })
		h.wantState()
		h.settled()
	})
}

// Connections to a service that is removed go on; new ones are refused.
func TestServicesDrain(t *testing.T) {
	everywhere(t, func(h *host) {
		h.listen(2)
		web := h.service("web", 1, source.TCP, 0)
		h.Put(web)
		c := h.connectTo(0)
		h.Remove(web)
		h.want("-A -t "+h.vip(1).String()+" -s wrr", h.draining(1, 0))
		if !h.goesOn(c) {
			h.Error("the connection did not go on")
		}
		if _, _, err := h.dial(h.vip(1)); !errors.Is(err, syscall.ECONNREFUSED) {
			h.Errorf("a new connection: %v, want a refusal", err)
		}
		h.Sync(nil)
		h.settled()
		h.Restart()
		h.Sync(nil)
		h.want("-A -t "+h.vip(1).String()+" -s wrr", h.draining(1, 0))
		if !h.goesOn(c) {
			h.Error("the connection did not go on after a restart")
		}
		c.Close()
		h.eventually("the server goes when it is idle", func() bool { return len(h.servers()) == 0 })
		if list, err := h.Backend.device.Addrs(h.Family == policy.IPv6); err != nil || len(list) != 0 {
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
		h.Put(h.service("web", 1, source.TCP, 0, 1))
		h.connectTo(0)
		h.Put(h.service("web", 1, source.TCP, 1))
		since, ok := h.Backend.record.drains[h.key(1)][h.endpoint(0)]
		if !ok {
			h.Fatal("no drain is known")
		}
		h.Restart()
		h.Sync(nil)
		h.wantState(h.draining(1, 0))
		if again, ok := h.Backend.record.drains[h.key(1)][h.endpoint(0)]; !ok || !again.Equal(since) {
			h.Errorf("after a restart it drains since %v (known: %v), before since %v", again, ok, since)
		}
		back := h.service("web", 1, source.TCP, 0, 1)
		h.World.Put(back.Key, back)
		h.Restart()
		h.Sync(nil)
		h.wantState()
	})
}

// UDP knows no end of a connection: a destination goes after a moment, and with its server at once.
func TestUDPDrainsForAMoment(t *testing.T) {
	everywhere(t, func(h *host) {
		h.Put(h.service("dns", 1, source.UDP, 0, 1))
		h.Put(h.service("dns", 1, source.UDP, 1))
		drains := strings.Replace(h.draining(1, 0), "-t", "-u", 1)
		h.wantState(drains)
		if due := h.Backend.NextDue(); time.Until(due) > datagramGrace {
			h.Errorf("it is to go in %v", time.Until(due))
		}
		h.dueUntil("the destination has gone", func() bool { return !slices.Contains(h.servers(), drains) })
		h.wantState()
		h.Put(h.service("dns", 1, source.UDP, 0))
		h.Remove(h.service("dns", 1, source.UDP, 0))
		h.want()
		h.settled()
	})
}

// Leaving the mode: connections go on, nothing else is left, and the rules stay
// for the next mode until they are removed.
func TestRetireKeepsConnections(t *testing.T) {
	everywhere(t, func(h *host) {
		h.listen(1)
		h.Put(h.service("web", 1, source.TCP, 0))
		h.Put(h.service("dns", 2, source.UDP, 0))
		h.Put(h.nodePort("node", 30080, 0))
		c := h.connectTo(0)
		done, err := h.Backend.Retire(t.Context())
		if done || err != nil {
			h.Fatalf("Retire gave %v, %v", done, err)
		}
		if !slices.Contains(h.servers(), h.draining(1, 0)) || strings.Contains(strings.Join(h.servers(), " "), "-u") {
			h.Errorf("servers: %q", h.servers())
		}
		if !h.goesOn(c) {
			h.Error("the connection did not go on")
		}
		if out := run(h, "ipset", "list", "-n"); !strings.Contains(out, "SVCP-SERVED") {
			h.Error("the sets are gone")
		}
		// A namespace whose rules do not ask for connection tracking has none; those
		// of the next mode do.
		run(h, "nft", "add table inet next; add chain inet next c { type filter hook input priority 0; }; add rule inet next c ct state invalid counter")
		h.Must(h.Backend.RemoveRules(t.Context()))
		if out := run(h, "ipset", "list", "-n"); strings.Contains(out, "SVCP-") {
			h.Errorf("sets left: %s", out)
		}
		if !h.goesOn(c) {
			h.Error("the connection did not go on without rules")
		}
		c.Close()
		if !pace.Within(time.Minute, func() bool {
			done, err := h.Backend.Retire(t.Context())
			h.Must(err)
			return done
		}) {
			h.Errorf("never done: %q", h.servers())
		}
		h.want()
		if out := run(h, "ip", "-o", "link"); strings.Contains(out, "svcproxy0") {
			h.Errorf("the device is left:\n%s", out)
		}
		h.Sync(nil) // and back
		h.wantState()
	})
}
