//go:build netns

package iptables_test

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/proxier/backendtest"
	"svcproxy.dev/svcproxy/proxier/iptables"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// Addresses whose text has pitfalls, settings at their limits.
func TestPitfallAddressesAreServed(t *testing.T) {
	everywhere(t, func(h *host) {
		st := &h.World.Host
		st.MarkBit = 31
		st.LocalInterfaces = []string{"*", "a@b.c-d_e", "abcdefghijklmn*"}
		all := netip.PrefixFrom(h.Family.Unspecified(), 0)
		st.LocalCIDRs = append(st.LocalCIDRs, all)
		st.ServiceCIDRs = append(st.ServiceCIDRs, all)
		addrs := []string{"0.0.0.1", "255.255.255.255", "10.96.0.0"}
		if h.Family == policy.IPv6 {
			addrs = []string{"::1.2.3.4", "::1:0", "::2", "::ffff:0:1.2.3.4", "1:0:0:2::", "1:0:2:3:4:5:6:7", "64:ff9b::1.2.3.4", "2001:db8:ffff:ffff:ffff:ffff:ffff:ffff"}
		}
		for i, a := range addrs {
			addr := netip.MustParseAddr(a)
			st.LocalCIDRs = append(st.LocalCIDRs, netip.PrefixFrom(addr, addr.BitLen()-20).Masked())
			res := backendtest.Web(h.Family, i, 3)
			res.Frontends[0].Key.Addr = addr
			res.Frontends[0].Outside.Masquerade = policy.NonLocal
			h.World.Put(res.Key, res)
		}
		h.Fill(seeded(3), 10)
		h.Sync(nil)
		h.Settled("sync")
	})
}

// foreignNAT brings back what a flush took from others.
func (h *host) foreignNAT() { h.iptables("-t nat -A POSTROUTING -o foreign0 -j MASQUERADE") }

// A set of our name that is of another kind, or takes too few members, is replaced.
func TestSetsOfAnotherKind(t *testing.T) {
	everywhere(t, func(h *host) {
		family := h.inet()
		h.Fill(seeded(5), 20)
		run(h, "ipset", "create", h.set("SVCP-VIPS"), "hash:net", "family", family)
		run(h, "ipset", "create", h.set("SVCP-REJECT"), "hash:ip,port", "family", family, "timeout", "100")
		run(h, "ipset", "create", h.set("SVCP-DROP"), "hash:ip,port", "family", family, "maxelem", "2")
		h.Sync(nil)
		h.Settled("sync")
		var keys []source.Key
		for i := range 300 {
			s := backendtest.Service{Name: fmt.Sprintf("drop-%d", i), Protocol: source.TCP}
			pool, _ := s.Pools()
			route := backendtest.Route(pool, policy.NoOne, policy.Drop)
			key := policy.FrontendKey{Addr: backendtest.Addr(h.Family, "external", 1000+i), Port: 80, Kind: policy.External}
			res := s.Resolve(&policy.Frontend{Key: key, Outside: route, FromLocal: route})
			h.Sync(h.World.Put(res.Key, res))
			keys = append(keys, res.Key)
		}
		h.Settled("300 more members")
		for _, key := range keys {
			h.Sync(h.World.Put(key, nil))
		}
		h.Settled("300 fewer members")
	})
}

// Whatever the order of starts, Docker's chain for the rules of the admin comes
// before ours, which accept, and ours before those that reject.
func TestUserChainOfDockerComesFirst(t *testing.T) {
	everywhere(t, func(h *host) {
		h.iptables("-A FORWARD -i foreign0 -j ACCEPT")
		h.iptables("-N DOCKER-USER")
		h.iptables("-A FORWARD -j DOCKER-USER")
		h.iptables("-A FORWARD -j REJECT")
		h.Fill(seeded(6), 5)
		ordered := func(when string) {
			h.Helper()
			h.Sync(nil)
			h.Settled(when)
			text := h.Dump()
			user, ours := strings.Index(text, "-A FORWARD -j DOCKER-USER\n"), strings.Index(text, "-j SVCP-FILTER\n-A FORWARD -j SVCP-FORWARD\n")
			if reject := strings.Index(text, "-A FORWARD -j REJECT"); ours < user || reject < ours {
				h.Errorf("%s: the order of FORWARD:\n%s", when, text)
			}
		}
		ordered("it was there")
		h.iptables("-D FORWARD -j DOCKER-USER")
		h.iptables("-I FORWARD -j DOCKER-USER")
		ordered("it is in front")
		h.iptables("-D FORWARD -j DOCKER-USER")
		ordered("it is gone")
		h.iptables("-I FORWARD 4 -j DOCKER-USER")
		ordered("it comes after ours")
	})
}

// Without the programs of iptables there are no chains to be removed; sets go, and
// the table that keeps connections.
func TestCleanupWithoutPrograms(t *testing.T) {
	everywhere(t, func(h *host) {
		h.Fill(seeded(9), 3)
		h.Sync(nil)
		for _, table := range []string{"nat", "filter", "mangle"} {
			h.iptables("-t " + table + " -F")
			h.iptables("-t " + table + " -X")
		}
		path := os.Getenv("PATH")
		h.Setenv("PATH", h.TempDir())
		err := iptables.Cleanup(context.Background(), h.Family)
		h.Setenv("PATH", path)
		if err != nil {
			h.Error(err)
		}
		if left := run(h, "nft", "list", "tables") + run(h, "ipset", "list", "-n"); strings.Contains(left, "SVCP-") {
			h.Errorf("left:\n%s", left)
		}
	})
}

// A run that finds chains of ours in both variants stays with one and empties the other.
func TestOtherVariantIsEmptied(t *testing.T) {
	everywhere(t, func(h *host) {
		other := map[string]string{"nft": "legacy", "legacy": "nft"}[h.variant]
		name := strings.Replace(h.tool(""), h.variant, other, 1)
		h.Fill(seeded(8), 5)
		h.Sync(nil)
		run(h, name, "-t", "nat", "-N", "SVCP-SERVICES")
		run(h, name, "-t", "nat", "-A", "OUTPUT", "-j", "SVCP-SERVICES")
		h.Restart()
		h.Sync(nil)
		left := run(h, "iptables-nft-save") + run(h, "ip6tables-nft-save") + run(h, "iptables-legacy-save") + run(h, "ip6tables-legacy-save")
		if n := strings.Count(left, ":SVCP-SERVICES "); n != 1 {
			h.Errorf("chains SVCP-SERVICES: got %d, want 1", n)
		}
		run(h, name, "-t", "mangle", "-N", "SVCP-OLD")
		h.Must(h.Backend.Cleanup(h.Context()))
		left = run(h, h.tool("-save")) + run(h, name+"-save")
		if strings.Contains(left, ":SVCP-") {
			h.Errorf("left after cleanup:\n%s", left)
		}
	})
}

// The deepest that chains can be: a tree that was cut off, a frontend that tells
// local sources from others, a pool of four levels.
func TestDeepestChainsWork(t *testing.T) {
	everywhere(t, func(h *host) {
		digits := h.Family.Bits() / 4
		base := backendtest.Addr(h.Family, "vip", 0)
		for i := range digits {
			b := base.AsSlice()
			b[i/2] ^= []byte{0x20, 0x02}[i%2]
			a, _ := netip.AddrFromSlice(b)
			for j := range 9 { // of one address, so that each digit but the last is a branch
				res := backendtest.Web(h.Family, 100*i+j, 1)
				res.Frontends[0].Key.Addr = a
				res.Frontends[0].Key.Port = uint16(1 + 7000*j)
				h.World.Put(res.Key, res)
			}
		}
		s := backendtest.Service{Name: "deep", Port: "p", Protocol: source.TCP, Targets: backendtest.Targets(h.Family, 0, 4097)}
		s.Local = s.Targets[:1]
		cluster, local := s.Pools()
		key := policy.FrontendKey{Addr: base, Port: 1}
		res := s.Resolve(&policy.Frontend{
			Key:       key,
			FromLocal: backendtest.Route(cluster, policy.HostProcesses, policy.Reject), Outside: backendtest.Route(local, policy.NoOne, policy.Drop),
		})
		h.World.Put(res.Key, res)
		h.Sync(nil)
		h.Settled("sync")
	})
}
