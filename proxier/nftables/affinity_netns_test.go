//go:build netns

package nftables_test

import (
	"encoding/binary"
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/proxier/backendtest"
	"svcproxy.dev/svcproxy/proxier/nftables"
	"svcproxy.dev/svcproxy/proxier/nftables/nfttest"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// An endpoint that is back is one of several for the clients that it had, whether
// they came meanwhile or not, and whether svcproxy saw it leave or not.
func TestAffinityIsForgotten(t *testing.T) {
	packets(t, 2, func(h *host) {
		second, first := h.service("sticky", 10, time.Hour, 0, 1), h.service("sticky", 10, time.Hour, 1)
		both := h.service("sticky", 10, time.Hour, 1000, 1)
		for _, restart := range []bool{false, true} {
			h.Sync(h.World.Put(both.Key, second))
			for client := range clients {
				h.mustAsk(h.at(10), client)
			}
			if restart {
				h.World.Put(both.Key, first)
				h.Restart()
				h.Sync(nil)
			} else {
				h.Sync(h.World.Put(both.Key, first))
			}
			h.Sync(h.World.Put(both.Key, both))
			stayed := 0
			for client := range clients {
				stayed += h.mustAsk(h.at(10), client)
			}
			if stayed == clients {
				t.Errorf("restart %v: all %d clients found their endpoint again, which had left", restart, stayed)
			}
			h.Settled("an endpoint was back")
			h.Sync(h.World.Put(both.Key, nil))
		}
	})
}

// forged is the nth of the addresses that packets are forged from.
func (h *host) forged(n int) netip.Addr {
	first := netip.MustParseAddr("100.64.0.0")
	if h.Family == policy.IPv6 {
		first = netip.MustParseAddr("fd00:100::")
	}
	b := first.AsSlice()
	low := b[len(b)-4:]
	binary.BigEndian.PutUint32(low, binary.BigEndian.Uint32(low)+uint32(n))
	a, _ := netip.AddrFromSlice(b)
	return a
}

// owned makes the forged addresses those of the namespace.
func (h *host) owned() {
	h.Helper()
	run(h, "ip", "route", "add", "local", netip.PrefixFrom(h.forged(0), h.Family.Bits()-22).String(), "dev", "lo")
}

// flood sends one packet from each of some addresses.
func (h *host) flood(to netip.AddrPort, from, until int) {
	h.Helper()
	family := unix.AF_INET
	if h.Family == policy.IPv6 {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	fatal.If(h, err)
	defer unix.Close(fd)
	if h.Family == policy.IPv6 { // IPv4 asks the routes only
		fatal.If(h, unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_FREEBIND, 1))
	}
	for i := from; i < until; i++ {
		// A refusal of a packet before comes as an error of this one.
		if err = h.send(fd, h.forged(i), to); err == unix.ECONNREFUSED {
			err = h.send(fd, h.forged(i), to)
		}
		if err != nil {
			h.Fatalf("packet %d: %v", i, err)
		}
	}
}

func (h *host) send(fd int, from netip.Addr, to netip.AddrPort) error {
	if h.Family == policy.IPv4 {
		info := unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: from.As4()})
		return unix.Sendmsg(fd, []byte("x"), info, &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())}, 0)
	}
	info := unix.PktInfo6(&unix.Inet6Pktinfo{Addr: from.As16()})
	return unix.Sendmsg(fd, []byte("x"), info, &unix.SockaddrInet6{Addr: to.Addr().As16(), Port: int(to.Port())}, 0)
}

// datagrams is a service for UDP whose clients keep their endpoint.
func (h *host) datagrams(name string, vip int, endpoints ...int) *policy.Resolved {
	s := backendtest.Service{Name: name, Protocol: source.UDP, Affinity: time.Hour}
	for _, n := range endpoints {
		s.Targets = append(s.Targets, backendtest.Targets(h.Family, n, 1)...)
	}
	pool, _ := s.Pools()
	route := backendtest.Route(pool, policy.NoOne, policy.Reject)
	key := h.vip(vip)
	key.Protocol = source.UDP
	return s.Resolve(&policy.Frontend{Key: key, Outside: route, FromLocal: route})
}

// clients returns the ticket of each client of a pool, which stands for an endpoint.
func (h *host) clients(service string) map[string]string {
	h.Helper()
	family, name, _ := strings.Cut(h.table(), " ")
	pattern := regexp.MustCompile(`([0-9a-f:.]+) \. ` + h.poolNumber(service) + ` timeout \S+ expires \S+ : (0x[0-9a-f]+)`)
	tickets := map[string]string{}
	for _, m := range pattern.FindAllStringSubmatch(run(h, "nft", "list", "map", family, name, "affinity"), -1) {
		tickets[m[1]] = m[2]
	}
	return tickets
}

// moved fails the test unless of the clients those with one ticket have got others, which it returns.
func (h *host) moved(before, after map[string]string) map[string]bool {
	h.Helper()
	lost, kept := map[string]bool{}, map[string]bool{}
	for client, ticket := range before {
		if now := after[client]; now == ticket {
			kept[ticket] = true
		} else if lost[ticket] = true; now == "" {
			h.Errorf("client %s is not remembered any more", client)
		}
	}
	for ticket := range lost {
		if kept[ticket] || len(lost) > 1 {
			h.Errorf("clients of ticket %s have moved, of tickets %v some have stayed", ticket, kept)
		}
	}
	return lost
}

// Clients of an endpoint that leaves move, once, and no others.
func TestClientsOfOneThatLeft(t *testing.T) {
	const some = 400
	everywhere(t, func(h *host) {
		h.enter(0)
		h.owned()
		to := netip.AddrPortFrom(h.vip(1).Addr, 80)
		ask := func() map[string]string {
			h.Helper()
			h.flood(to, 0, some)
			all := h.clients("sticky")
			if len(all) != some {
				h.Fatalf("%d clients are remembered, want %d", len(all), some)
			}
			return all
		}
		res := h.datagrams("sticky", 1, 0, 1, 2, 3)
		h.Sync(h.World.Put(res.Key, res))
		first := ask()
		if lost := h.moved(first, ask()); len(lost) > 0 {
			h.Errorf("clients of tickets %v moved, and nothing had left", lost)
		}
		h.Sync(h.World.Put(res.Key, h.datagrams("sticky", 1, 0, 1, 2)))
		second := ask()
		if lost := h.moved(first, second); len(lost) != 1 {
			h.Errorf("an endpoint left: clients of tickets %v moved, want one ticket", lost)
		}
		h.Sync(h.World.Put(res.Key, res))
		if lost := h.moved(second, ask()); len(lost) > 0 {
			h.Errorf("the endpoint was back: clients of tickets %v moved", lost)
		}
		third := ask()
		for _, weight := range []uint16{3, 10, 7} { // as in a slow start, in which other slots are all others'
			res := h.datagrams("sticky", 1, 0, 1, 2, 3)
			for i := range res.Pools[0].Targets {
				if res.Pools[0].Targets[i].Weight = 10; i == 1 {
					res.Pools[0].Targets[i].Weight = weight
				}
			}
			h.Sync(h.World.Put(res.Key, res))
			if lost := h.moved(third, ask()); len(lost) > 0 {
				h.Errorf("weight %d: clients of tickets %v moved", weight, lost)
			}
		}
		h.Settled("end")
	})
}

// However many clients there are, nobody looks at them: not when an endpoint
// leaves, not when svcproxy starts again.
func TestClientsAreNotListed(t *testing.T) {
	const many = 50_000 // the kernel tracks a connection of each
	everywhere(t, func(h *host) {
		h.enter(0)
		h.owned()
		res := h.datagrams("sticky", 1, 0, 1, 2, 3)
		h.Sync(h.World.Put(res.Key, res))
		h.flood(netip.AddrPortFrom(h.vip(1).Addr, 80), 0, many)
		before := h.Backend.Received()
		h.Sync(h.World.Put(res.Key, h.datagrams("sticky", 1, 0, 1, 2)))
		if n := h.Backend.Received() - before; n > 4096 {
			h.Errorf("an endpoint left: %d bytes were read", n)
		}
		h.Restart()
		h.Sync(nil)
		if n := h.Backend.Received(); n > many {
			h.Errorf("start: %d bytes were read, with %d clients", n, many)
		}
	})
}

// A service that is flooded from forged addresses does not grow without bound, and
// takes neither room nor a known client from another one.
func TestFloodedServiceTakesNoRoomOfOthers(t *testing.T) {
	t.Cleanup(nftables.Limit(4000, 1000))
	everywhere(t, func(h *host) {
		h.enter(0)
		h.owned()
		for i, name := range []string{"flooded", "other"} {
			res := h.datagrams(name, 1+i, 0, 1)
			h.Sync(h.World.Put(res.Key, res))
		}
		flooded, other := netip.AddrPortFrom(h.vip(1).Addr, 80), netip.AddrPortFrom(h.vip(2).Addr, 80)
		h.flood(other, 0, 100)
		h.flood(flooded, 0, 3000)
		h.flood(flooded, 0, 10) // known ones cost nothing
		h.flood(other, 100, 800)
		known := h.clients("other")
		for _, client := range []int{0, 99, 100, 799} {
			if known[h.forged(client).String()] == "" {
				h.Errorf("client %d of the other service is not remembered", client)
			}
		}
		known = h.clients("flooded")
		if n := len(known); known[h.forged(0).String()] == "" || n < 1000 || n > 1500 {
			h.Errorf("the flooded service has %d clients, want some 1000 and the first", n)
		}
	})
}

// poolNumber returns the number of a service's pool, as nft prints it.
func (h *host) poolNumber(service string) string {
	h.Helper()
	for _, line := range nfttest.Text(h.World.State) {
		if strings.Contains(line, `"default/`+service+`/udp cluster"`) {
			_, number, _ := strings.Cut(line, `" : `)
			return strings.TrimSuffix(number, " }")
		}
	}
	h.Fatalf("service %s has no pool", service)
	return ""
}
