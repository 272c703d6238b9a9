//go:build vm

package ipvs

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/internal/echotest"
	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// What another program changes of flags and thresholds is found and repaired, and changes of ours
// reach the kernel, also of an endpoint of weight 0.
func TestFlagsAndLimits(t *testing.T) {
	everywhere(t, func(h *host) {
		service := func(weight uint16, limits policy.Limits, flags source.SchedulerFlags, packet bool) *policy.Resolved {
			res := h.service("web", 1, source.UDP, 0, 1)
			pool := res.Pools[0]
			pool.Scheduler, pool.SchedulerFlags, pool.OnePacket = "mh", flags, packet
			pool.Limits = map[netip.AddrPort]policy.Limits{h.endpoint(0): limits}
			if weight == 0 {
				pool.Targets, pool.Kept = pool.Targets[1:], []netip.AddrPort{h.endpoint(0)}
			}
			return res
		}
		h.Put(service(1, policy.Limits{Max: 100, Min: 10}, source.MHFallback|source.MHPort, true))
		h.wantState()
		h.settled()
		at := "-u " + h.vip(1).String()
		for _, damage := range []string{
			"-E " + at + " -s mh -b mh-fallback,mh-port",
			"-E " + at + " -s mh -b mh-port -o",
			"-e " + at + " -r " + h.endpoint(0).String() + " -m -w 1",
			"-e " + at + " -r " + h.endpoint(0).String() + " -m -w 1 -x 100 -y 11",
		} {
			h.ipvsadm(damage)
			if !h.Look() {
				t.Errorf("not found: ipvsadm %s", damage)
			}
			h.Repair(&policy.Delta{})
			h.wantState()
			h.settled()
		}
		for _, res := range []*policy.Resolved{
			service(1, policy.Limits{Max: 7}, source.MHPort, false), service(0, policy.Limits{Max: 8, Min: 8}, 0, true), service(0, policy.Limits{}, 0, false),
		} {
			h.Put(res)
			h.wantState()
			h.settled()
		}
	})
}

// An endpoint that has as many connections as it may have gets no more: they go to others, and
// where there are none they are refused. It is counted at each address by itself.
func TestFullEndpointsGetNoMoreConnections(t *testing.T) {
	everywhere(t, func(h *host) {
		h.listen(2)
		limited := func(name string, vip int, endpoints ...int) *policy.Resolved {
			res := h.service(name, vip, source.TCP, endpoints...)
			res.Pools[0].Limits = map[netip.AddrPort]policy.Limits{h.endpoint(0): {Max: 2}}
			return res
		}
		h.Put(limited("one", 1, 0, 1))
		h.Put(limited("two", 2, 0))
		got := map[int]int{}
		for range 8 {
			_, n := h.mustDial(h.vip(1))
			got[n]++
		}
		if got[0] != 2 || got[1] != 6 {
			t.Errorf("of 8 connections endpoints got %v, want 2 and 6", got)
		}
		for range 2 {
			h.mustDial(h.vip(2))
		}
		if c, err := (&net.Dialer{Timeout: patience(0)}).Dial("tcp", h.vip(2).String()); err == nil {
			c.Close()
			t.Error("a third connection is accepted where the only endpoint has two")
		}
	})
}

// With one_packet each packet of a client goes to the endpoint whose turn it is, and to one that
// is there now; with session affinity to its own. Its answer reaches the client from endpoints that
// answer themselves, and from no others.
func TestOnePacketBalancesEachPacket(t *testing.T) {
	for _, fam := range families {
		t.Run(fam.String(), func(t *testing.T) {
			s := newSegment(t, fam)
			e := s.count()
			onePacket := func(more func(*source.Service)) func(*source.Service) {
				return func(svc *source.Service) {
					svc.OnePacket = true
					more(svc)
				}
			}
			nothing := func(*source.Service) {}
			c := s.dialUDP() // its connection is remembered, and goes on as it is
			s.Put(s.edited(nothing, e.at...))
			e.reach(c)
			if got := e.take(c, 8); min(got[0], got[1]) != 0 {
				t.Errorf("without one_packet the 8 packets of a flow went to endpoints %v", got)
			}
			c = s.dialUDP()
			s.Put(s.edited(onePacket(nothing), e.at...))
			s.wantState()
			s.settled()
			if got := e.take(c, 8); got != [2]int{4, 4} {
				t.Errorf("with one_packet 8 packets went to endpoints %v, want 4 to each", got)
			}
			if e.from != s.own {
				t.Errorf("endpoints see %s, want the host's %s", e.from, s.own)
			}
			if n := e.counted(9); n != 9 {
				t.Errorf("IPVS counts %d connections, want 1 and that of each of 8 packets", n)
			}
			s.Put(s.edited(onePacket(nothing), e.at[1]))
			if got := e.take(c, 4); got != [2]int{0, 4} {
				t.Errorf("after an endpoint left 4 packets went to endpoints %v", got)
			}
			s.Put(s.edited(onePacket(func(svc *source.Service) { svc.Affinity = time.Hour }), e.at...))
			if got := e.take(c, 8); got != [2]int{8, 0} && got != [2]int{0, 8} {
				t.Errorf("with session affinity 8 packets went to endpoints %v, want one", got)
			}
			if n, err := answersTo(c); n != 0 {
				t.Errorf("an answer reaches the client, which it is told not to expect; error %v", err)
			}
			s.serve()
			s.Put(s.edited(onePacket(func(svc *source.Service) { svc.Forward.Method = source.ForwardDirect }), e.at...))
			s.wantState()
			if seen := s.askByUDP(); seen != s.client.String() {
				t.Errorf("forwarded as it is: the endpoint sees %s, not the client", seen)
			}
		})
	}
}

// counted returns how many connections IPVS counts of the UDP service, once they are n or it has had
// time to count.
func (e *counting) counted(n uint64) (sum uint64) {
	e.Helper()
	key := e.key(1)
	key.Protocol = uint8(source.UDP)
	pace.Within(20*time.Second, func() bool {
		list, err := e.Backend.conn.Counters(e.Context(), key)
		e.Must(err)
		sum = 0
		for _, c := range list {
			sum += c.Connections
		}
		return sum == n
	})
	return sum
}

// dialUDP returns a socket of the client.
func (s *segment) dialUDP() (c net.Conn) {
	s.Helper()
	s.In(s.clientNS, func() {
		var err error
		c, err = net.Dial("udp", s.vip.String())
		s.Must(err)
	})
	s.Cleanup(func() { c.Close() })
	return c
}

// answersTo reads an answer, and returns 0 if none comes for a while.
func answersTo(c net.Conn) (int, error) {
	c.SetReadDeadline(time.Now().Add(pace.Scale(500 * time.Millisecond)))
	n, err := c.Read(make([]byte, 10))
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return 0, nil
	}
	return n, err
}

// counting are two endpoints that count datagrams and answer each.
type counting struct {
	*segment
	at []netip.Addr

	mu   sync.Mutex
	got  [2]int
	from netip.Addr // of the last
}

func (s *segment) count() *counting {
	s.Helper()
	second := s.server.Next()
	bits := map[bool]string{true: "/24", false: "/64"}[second.Is4()]
	run(s, "ip", append(strings.Fields("-n "+s.serverNS+" addr add dev wire0 "+second.String()+bits), noDAD(s.Family)...)...)
	e := &counting{segment: s, at: []netip.Addr{s.server, second}}
	var servers echotest.Servers
	s.Cleanup(servers.Close)
	s.In(s.serverNS, func() {
		for i, a := range e.at {
			c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(a, 80)))
			s.Must(err)
			servers.Run(c, func() { e.serve(i, c) })
		}
	})
	return e
}

func (e *counting) serve(i int, c *net.UDPConn) {
	for b := make([]byte, 10); ; {
		_, from, err := c.ReadFromUDPAddrPort(b)
		if err != nil {
			return
		}
		e.mu.Lock()
		e.got[i]++
		e.from = from.Addr().Unmap()
		e.mu.Unlock()
		c.WriteToUDPAddrPort([]byte("yes"), from)
	}
}

// reach has the host reach each endpoint, and c send until a datagram comes to one: the first are
// lost where a neighbour is not found in time, or an IPv6 address has no route yet.
func (e *counting) reach(c net.Conn) {
	e.Helper()
	for _, a := range e.at {
		e.eventually("the host to reach "+a.String(), func() bool {
			_, err := net.DialTimeout("tcp", netip.AddrPortFrom(a, 80).String(), time.Second)
			return errors.Is(err, syscall.ECONNREFUSED) // so its kernel has answered
		})
	}
	e.eventually("a datagram to come to an endpoint", func() bool {
		c.Write([]byte("one")) // an error is that of one before
		time.Sleep(pace.Scale(100 * time.Millisecond))
		return e.taken() != [2]int{}
	})
}

// taken returns how many datagrams each endpoint has got.
func (e *counting) taken() [2]int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.got
}

// take sends n datagrams, each after the one before has come to an endpoint, and returns how many each got.
func (e *counting) take(c net.Conn, n int) [2]int {
	e.Helper()
	e.mu.Lock()
	e.got = [2]int{}
	e.mu.Unlock()
	for i := range n {
		_, err := c.Write([]byte("one"))
		e.Must(err)
		pace.UntilOr(e, func() bool { got := e.taken(); return got[0]+got[1] > i }, func() string {
			return fmt.Sprintf("datagram %d of %d came to no endpoint; they got %v", i+1, n, e.taken())
		})
	}
	return e.taken()
}
