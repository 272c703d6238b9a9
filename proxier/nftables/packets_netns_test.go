//go:build netns

package nftables_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/internal/echotest"
	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/proxier/backendtest"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// The namespace is client, node and endpoints in one: endpoints are addresses of
// the loopback device, and answer with their own. What needs several hosts is left to the lab.

// address returns the nth address of an endpoint, or of a client from 100 on.
func (h *host) address(n int) netip.Addr { return backendtest.Addr(h.Family, "endpoint", n) }

// enter gives the namespace addresses, and a route to services.
func (h *host) enter(endpoints int) {
	h.Helper()
	batch := "link set lo up\n"
	for i := range endpoints {
		batch += "addr add " + h.address(i).String() + " dev lo nodad\n"
	}
	for i := range clients {
		batch += "addr add " + h.address(100+i).String() + " dev lo nodad\n"
	}
	batch += "route add default dev lo src " + h.address(100).String() + "\n"
	ip := []string{"-batch", "-"}
	if h.Family == policy.IPv6 {
		ip = append([]string{"-6"}, ip...)
	}
	backendtest.CommandInput(h, batch, "ip", ip...)
	for i := range endpoints {
		h.routed(h.address(i))
	}
	for i := range clients {
		h.routed(h.address(100 + i))
	}
}

// routed waits until the kernel delivers to an address of the namespace: a new IPv6
// address has its route from a work queue, some time after the command has ended.
func (h *host) routed(addr netip.Addr) {
	h.Helper()
	var route []byte
	var err error
	pace.UntilOr(h, func() bool {
		route, err = exec.Command("ip", "route", "get", addr.String()).CombinedOutput()
		return err == nil && strings.HasPrefix(string(route), "local ")
	}, func() string { return fmt.Sprintf("%s is not delivered: %v\n%s", addr, err, route) })
}

const clients = 8

// listen makes endpoints answer on port 8080 with the number of their address.
func (h *host) listen(endpoints int) {
	h.Helper()
	for i := range endpoints {
		h.answer(netip.AddrPortFrom(h.address(i), 8080), i)
	}
}

// answer makes a server that says a number.
func (h *host) answer(at netip.AddrPort, number int) {
	h.Helper()
	var servers echotest.Servers
	h.Cleanup(servers.Close)
	fatal.If(h, servers.Serve(strconv.Itoa(number), at))
}

// ask connects to an address from a client and returns who answered.
func (h *host) ask(to netip.AddrPort, client int, patience time.Duration) (int, error) {
	from := net.TCPAddrFromAddrPort(netip.AddrPortFrom(h.address(100+client), 0))
	c, err := echotest.Dial(&net.Dialer{Timeout: patience, LocalAddr: from}, to.String())
	if err != nil {
		return -1, err
	}
	defer c.Close()
	c.SetLinger(0) // it leaves no port that waits for the end
	return strconv.Atoi(c.Server)
}

func (h *host) mustAsk(to netip.AddrPort, client int) int {
	h.Helper()
	n, err := h.ask(to, client, 10*time.Second)
	fatal.If(h, err)
	return n
}

// A service of the test has frontends at two addresses, both on port 80.
func (h *host) service(name string, first int, keep time.Duration, weights ...uint16) *policy.Resolved {
	s := backendtest.Service{Name: name, Protocol: source.TCP, Affinity: keep, Targets: backendtest.Targets(h.Family, 0, len(weights))}
	for i, w := range weights {
		s.Targets[i].Weight = w
	}
	s.Targets = withWeight(s.Targets)
	pool, _ := s.Pools()
	route := backendtest.Route(pool, policy.NoOne, policy.Reject)
	var list []*policy.Frontend
	for i := range 2 {
		list = append(list, &policy.Frontend{Key: h.vip(first + i), Outside: route, FromLocal: route})
	}
	return s.Resolve(list...)
}

func withWeight(targets []policy.Target) (list []policy.Target) {
	for _, t := range targets {
		if t.Weight > 0 {
			list = append(list, t)
		}
	}
	return list
}

func (h *host) vip(n int) policy.FrontendKey {
	return policy.FrontendKey{Addr: backendtest.Addr(h.Family, "vip", n), Port: 80}
}

func (h *host) at(n int) netip.AddrPort { return netip.AddrPortFrom(h.vip(n).Addr, 80) }

// packets runs a test with that many endpoints that listen.
func packets(t *testing.T, endpoints int, test func(*host)) {
	everywhere(t, func(h *host) {
		h.World.Host.LocalCIDRs, h.World.Host.LocalInterfaces = nil, nil
		h.enter(endpoints)
		h.listen(endpoints)
		test(h)
	})
}

func ones(n int) []uint16 {
	list := make([]uint16, n)
	for i := range list {
		list[i] = 1
	}
	return list
}

func TestConnectionsAreBalanced(t *testing.T) {
	const connections, most = 3000, 40
	packets(t, most, func(h *host) {
		tests := []struct {
			name    string
			weights []uint16
		}{
			{"equal", []uint16{1, 1, 1}},
			{"3 to 1", []uint16{3, 1}},
			{"one without weight", []uint16{1, 0, 2}},
			{"numbers that fall on no slot", ones(33)},
			{"most", ones(most)},
		}
		for i, tt := range tests {
			for j, keep := range []time.Duration{0, time.Hour} {
				res := h.service(strings.ReplaceAll(tt.name, " ", "-"), 10*(i+1), keep, tt.weights...)
				h.Sync(h.World.Put(res.Key, res))
				if keep > 0 {
					continue // one client is one endpoint's: see TestAffinityLastsUntilTheEndpointLeaves
				}
				h.balanced(tt.name, h.at(10*(i+1)+j), tt.weights, connections)
			}
		}
	})
}

// balanced fails the test if endpoints do not answer by weight. Five standard
// deviations are left for chance.
func (h *host) balanced(name string, to netip.AddrPort, weights []uint16, connections int) {
	h.Helper()
	counts := make([]int, len(weights))
	for i := range connections {
		counts[h.mustAsk(to, i%clients)]++
	}
	sum := 0
	for _, w := range weights {
		sum += int(w)
	}
	for i, n := range counts {
		p := float64(weights[i]) / float64(sum)
		mean := float64(connections) * p
		if off := float64(n) - mean; off*off > 25*mean*(1-p) {
			h.Errorf("%s: endpoint %d got %d of %d connections, want about %.0f", name, i, n, connections, mean)
		}
	}
}

// A client keeps its endpoint over the addresses of a service, over syncs and
// restarts, until that leaves.
func TestAffinityLastsUntilTheEndpointLeaves(t *testing.T) {
	packets(t, 5, func(h *host) {
		res := h.service("sticky", 10, time.Hour, ones(5)...)
		h.Sync(h.World.Put(res.Key, res))
		kept := map[int]int{}
		stays := func(when string) {
			h.Helper()
			for client := range clients {
				for _, vip := range []int{10, 11, 10} {
					if got := h.mustAsk(h.at(vip), client); got != kept[client] {
						h.Errorf("%s: client %d: endpoint %d answered at %s, want %d", when, client, got, h.at(vip), kept[client])
					}
				}
			}
		}
		seen := map[int]bool{}
		for client := range clients {
			kept[client] = h.mustAsk(h.at(10), client)
			seen[kept[client]] = true
		}
		if len(seen) == 1 {
			h.Errorf("all %d clients have endpoint %v", clients, seen)
		}
		stays("first")
		more := h.service("more", 20, 10*time.Second, 1)
		h.Sync(h.World.Put(more.Key, more))
		stays("after a delta")
		h.Restart()
		h.Sync(nil)
		stays("after a restart")
		h.nft("insert rule TABLE services accept")
		h.Sync(nil)
		stays("after rules were repaired")

		gone := kept[0]
		weights := ones(5)
		weights[gone] = 0
		h.Sync(h.World.Put(res.Key, h.service("sticky", 10, time.Hour, weights...)))
		for client := range clients {
			if kept[client] == gone {
				delete(kept, client)
			}
		}
		h.Sync(h.World.Put(res.Key, res))
		for client := range clients {
			if _, keeps := kept[client]; !keeps {
				kept[client] = h.mustAsk(h.at(10), client)
			}
		}
		stays("after an endpoint had gone")
		h.Settled("end")
	})
}

// drops returns a service that drops.
func (h *host) drops() *policy.Resolved {
	res := h.service("drops", 30, 0)
	for _, f := range res.Frontends {
		f.Outside.Action = policy.Drop
		f.FromLocal = f.Outside
	}
	return res
}

// keeps is a service with session affinity.
func (h *host) keeps() *policy.Resolved {
	s := backendtest.Service{Name: "keeps", Protocol: source.TCP, Affinity: time.Hour, Targets: backendtest.Targets(h.Family, 900_000, 2)}
	pool, _ := s.Pools()
	route := backendtest.Route(pool, policy.Everyone, policy.Reject)
	return s.Resolve(&policy.Frontend{Key: policy.FrontendKey{Addr: h.address(31), Port: 80, Kind: policy.External}, Outside: route, FromLocal: route})
}

func TestRefusedConnections(t *testing.T) {
	packets(t, 1, func(h *host) {
		drops := h.drops()
		ranges := h.service("ranges", 40, 0, 1)
		for i, f := range ranges.Frontends {
			f.Key.Kind, f.Restricted = policy.LoadBalancer, true
			f.SourceRanges = []netip.Prefix{netip.PrefixFrom(h.address(100+i), h.Family.Bits())}
		}
		for _, res := range []*policy.Resolved{h.service("serves", 10, 0, 1), h.service("refuses", 20, 0), drops, ranges} {
			h.Sync(h.World.Put(res.Key, res))
		}
		refused := func(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }
		silent := func(err error) bool { return errors.Is(err, context.DeadlineExceeded) || isTimeout(err) }
		answers := func(err error) bool { return err == nil }
		tests := []struct {
			name string
			to   netip.AddrPort
			want func(error) bool
		}{
			{"served", h.at(10), answers},
			{"no endpoint", h.at(20), refused},
			{"none of this node", h.at(30), silent},
			{"another port of a vip", netip.AddrPortFrom(h.at(10).Addr(), 81), refused},
			{"address in service_cidrs", h.at(200), refused},
			{"source that may", h.at(40), answers},
			{"source that may not", h.at(41), silent},
		}
		h.mustAsk(h.at(10), 0)
		for _, tt := range tests {
			if _, err := h.ask(tt.to, 0, 300*time.Millisecond); !tt.want(err) {
				h.Errorf("%s: %s: got error %v", tt.name, tt.to, err)
			}
		}
	})
}

func isTimeout(err error) bool {
	var t net.Error
	return errors.As(err, &t) && t.Timeout()
}
