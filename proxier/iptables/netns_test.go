//go:build netns

package iptables_test

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"svcproxy/proxier"
	"svcproxy/proxier/filter/filtertest"
	"svcproxy/proxier/iptables"
	"svcproxy/source"
)

func TestReadsBackWhatItWrote(t *testing.T) {
	everywhere(t, func(h *host) {
		h.fill(seeded(1), 60)
		if changes := h.planned(); len(changes) < 100 {
			h.Fatalf("planned on an empty host: %v", changes)
		}
		h.sync(nil)
		h.settled("first sync")
		before := h.everything()
		h.sync(nil)
		if diff := cmp.Diff(before, h.everything()); diff != "" {
			h.Errorf("second sync changed (-before +after):\n%s", diff)
		}
	})
}

func TestDeltas(t *testing.T) {
	everywhere(t, func(h *host) {
		pick := seeded(2)
		h.fill(pick, 20)
		h.sync(nil)
		for step := range 25 {
			number := pick(24)
			key := source.Key{Namespace: "default", Name: fmt.Sprintf("svc-%d", number)}
			var res *proxier.Resolved
			if pick(4) > 0 {
				res = h.world.Random(pick, number)
			}
			h.sync(h.world.Put(key, res))
			h.settled(fmt.Sprintf("delta %d", step))
		}
	})
}

// Addresses whose text has pitfalls, settings at their limits.
func TestOddHosts(t *testing.T) {
	everywhere(t, func(h *host) {
		st := &h.world.Host
		st.MarkBit = 31
		st.LocalInterfaces = []string{"*", "a@b.c-d_e", "abcdefghijklmn*"}
		all := netip.PrefixFrom(h.fam.Unspecified(), 0)
		st.LocalCIDRs = append(st.LocalCIDRs, all)
		st.ServiceCIDRs = append(st.ServiceCIDRs, all)
		addrs := []string{"0.0.0.1", "255.255.255.255", "10.96.0.0"}
		if h.fam == proxier.IPv6 {
			addrs = []string{"::1.2.3.4", "::1:0", "::2", "::ffff:0:1.2.3.4", "1:0:0:2::", "1:0:2:3:4:5:6:7", "64:ff9b::1.2.3.4", "2001:db8:ffff:ffff:ffff:ffff:ffff:ffff"}
		}
		for i, a := range addrs {
			addr := netip.MustParseAddr(a)
			st.LocalCIDRs = append(st.LocalCIDRs, netip.PrefixFrom(addr, addr.BitLen()-20).Masked())
			res := filtertest.Web(h.fam, i, 3)
			res.Frontends[0].Key.Addr = addr
			res.Frontends[0].Outside.Masquerade = proxier.NonLocal
			h.world.Put(res.Key, res)
		}
		h.fill(seeded(3), 10)
		h.sync(nil)
		h.settled("sync")
	})
}

// What others break is mended, and what is theirs left alone.
func TestMends(t *testing.T) {
	set := func(h *host, name string) string {
		if h.fam == proxier.IPv6 {
			return name + "-6"
		}
		return name + "-4"
	}
	tests := []struct {
		name string
		harm func(h *host)
	}{
		{"nat flushed", func(h *host) { h.iptables("-t nat -F"); h.foreignNAT() }},
		{"nat flushed, chains deleted", func(h *host) { h.iptables("-t nat -F"); h.iptables("-t nat -X"); h.foreignNAT() }},
		{"our filter chain flushed", func(h *host) { h.iptables("-F SVCP-FILTER") }},
		{"rule deleted", func(h *host) { h.iptables("-t nat -D SVCP-SERVICES 1") }},
		{"rule added", func(h *host) { h.iptables("-t nat -A SVCP-MARK-MASQ -j ACCEPT") }},
		{"rule replaced", func(h *host) { h.iptables("-t nat -R SVCP-MARK-MASQ 1 -j MARK --set-xmark 0x1/0x1") }},
		{"jump deleted", func(h *host) { h.iptables("-D FORWARD -j SVCP-FORWARD") }},
		{"jump twice", func(h *host) { h.iptables("-t nat -A OUTPUT -j SVCP-SERVICES") }},
		{"jumps in the wrong order", func(h *host) {
			h.iptables("-D FORWARD -j SVCP-FORWARD")
			h.iptables("-I FORWARD -j SVCP-FORWARD")
		}},
		{"chain of an earlier run", func(h *host) {
			h.iptables("-N SVCP-OLD")
			h.iptables("-A SVCP-OLD -j ACCEPT")
			h.iptables("-I INPUT -j SVCP-OLD")
		}},
		{"set flushed", func(h *host) { run(h, "ipset", "flush", set(h, "SVCP-VIPS")) }},
		{"set of an earlier run", func(h *host) { run(h, "ipset", "create", set(h, "SVCP-OLD"), "hash:net") }},
		{"set without a family in its name", func(h *host) {
			family := "inet"
			if h.fam == proxier.IPv6 {
				family = "inet6"
			}
			run(h, "ipset", "create", "SVCP-STRAY", "hash:ip", "family", family)
		}},
		{"member too many", func(h *host) {
			addr := filtertest.Addr(h.fam, "external", 77)
			run(h, "ipset", "add", set(h, "SVCP-REJECT"), addr.String()+",tcp:1")
		}},
	}
	everywhere(t, func(h *host) {
		h.fill(seeded(4), 30)
		h.sync(nil)
		before := h.everything()
		for _, tt := range tests {
			tt.harm(h)
			if len(h.planned()) == 0 {
				h.Errorf("%s: nothing planned", tt.name)
			}
			h.sync(nil)
			h.settled(tt.name)
			if diff := cmp.Diff(before, h.everything()); diff != "" {
				h.Fatalf("%s (-before +after):\n%s", tt.name, diff)
			}
		}
	})
}

// foreignNAT brings back what a flush took from others.
func (h *host) foreignNAT() { h.iptables("-t nat -A POSTROUTING -o foreign0 -j MASQUERADE") }

// A set of our name that is of another kind, or takes too few members, is replaced.
func TestSetsOfAnotherKind(t *testing.T) {
	everywhere(t, func(h *host) {
		suffix, family := "-4", "inet"
		if h.fam == proxier.IPv6 {
			suffix, family = "-6", "inet6"
		}
		h.fill(seeded(5), 20)
		run(h, "ipset", "create", "SVCP-VIPS"+suffix, "hash:net", "family", family)
		run(h, "ipset", "create", "SVCP-REJECT"+suffix, "hash:ip,port", "family", family, "timeout", "100")
		run(h, "ipset", "create", "SVCP-DROP"+suffix, "hash:ip,port", "family", family, "maxelem", "2")
		h.sync(nil)
		h.settled("sync")
		var keys []source.Key
		for i := range 300 {
			s := filtertest.Service{Name: fmt.Sprintf("drop-%d", i), Protocol: source.TCP}
			pool, _ := s.Pools()
			leg := filtertest.Leg(pool, proxier.NoOne, proxier.Drop)
			key := proxier.FrontendKey{Addr: filtertest.Addr(h.fam, "external", 1000+i), Port: 80, Kind: proxier.External}
			res := s.Resolve(&proxier.Frontend{Key: key, Outside: leg, Local: leg})
			h.sync(h.world.Put(res.Key, res))
			keys = append(keys, res.Key)
		}
		h.settled("300 more members")
		for _, key := range keys {
			h.sync(h.world.Put(key, nil))
		}
		h.settled("300 fewer members")
	})
}

// Whatever the order of starts, Docker's chain for the rules of the admin comes
// before ours, which accept, and ours before those that reject.
func TestUserChain(t *testing.T) {
	everywhere(t, func(h *host) {
		h.iptables("-A FORWARD -i foreign0 -j ACCEPT")
		h.iptables("-N DOCKER-USER")
		h.iptables("-A FORWARD -j DOCKER-USER")
		h.iptables("-A FORWARD -j REJECT")
		h.fill(seeded(6), 5)
		ordered := func(when string) {
			h.Helper()
			h.sync(nil)
			h.settled(when)
			text := h.everything()
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

func TestCleanup(t *testing.T) {
	everywhere(t, func(h *host) {
		before := h.everything()
		h.fill(seeded(7), 30)
		h.sync(nil)
		for range 2 { // the second time there is nothing
			if err := h.backend.Cleanup(context.Background()); err != nil {
				h.Fatal(err)
			}
			after := h.everything()
			if diff := cmp.Diff(before, after); diff != "" {
				h.Fatalf("cleanup (-before +after):\n%s", diff)
			}
		}
		h.sync(nil)
		h.settled("sync after cleanup")
	})
}

// Without the programs of iptables there are no chains to be removed; sets go, and
// the table that keeps connections.
func TestCleanupWithoutPrograms(t *testing.T) {
	everywhere(t, func(h *host) {
		h.fill(seeded(9), 3)
		h.sync(nil)
		for _, table := range []string{"nat", "filter", "mangle"} {
			h.iptables("-t " + table + " -F")
			h.iptables("-t " + table + " -X")
		}
		path := os.Getenv("PATH")
		h.Setenv("PATH", h.TempDir())
		err := iptables.Cleanup(context.Background(), h.fam)
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
func TestOtherVariant(t *testing.T) {
	everywhere(t, func(h *host) {
		other := map[string]string{"nft": "legacy", "legacy": "nft"}[h.variant]
		name := strings.Replace(h.tool(""), h.variant, other, 1)
		h.fill(seeded(8), 5)
		h.sync(nil)
		run(h, name, "-t", "nat", "-N", "SVCP-SERVICES")
		run(h, name, "-t", "nat", "-A", "OUTPUT", "-j", "SVCP-SERVICES")
		again := newBackend(h, h.fam)
		if err := again.Sync(context.Background(), h.world.State, nil); err != nil {
			h.Fatal(err)
		}
		left := run(h, "iptables-nft-save") + run(h, "ip6tables-nft-save") + run(h, "iptables-legacy-save") + run(h, "ip6tables-legacy-save")
		if n := strings.Count(left, ":SVCP-SERVICES "); n != 1 {
			h.Errorf("chains SVCP-SERVICES: got %d, want 1", n)
		}
		run(h, name, "-t", "mangle", "-N", "SVCP-OLD")
		if err := again.Cleanup(context.Background()); err != nil {
			h.Fatal(err)
		}
		left = run(h, h.tool("-save")) + run(h, name+"-save")
		if strings.Contains(left, ":SVCP-") {
			h.Errorf("left after cleanup:\n%s", left)
		}
	})
}

// The deepest that chains can be: a tree that was cut off, a frontend that tells
// local sources from others, a pool of four levels.
func TestDepth(t *testing.T) {
	everywhere(t, func(h *host) {
		digits := h.fam.Bits() / 4
		base := filtertest.Addr(h.fam, "vip", 0)
		for i := range digits {
			b := base.AsSlice()
			b[i/2] ^= []byte{0x20, 0x02}[i%2]
			a, _ := netip.AddrFromSlice(b)
			for j := range 9 { // of one address, so that each digit but the last is a branch
				res := filtertest.Web(h.fam, 100*i+j, 1)
				res.Frontends[0].Key.Addr = a
				res.Frontends[0].Key.Port = uint16(1 + 7000*j)
				h.world.Put(res.Key, res)
			}
		}
		s := filtertest.Service{Name: "deep", Port: "p", Protocol: source.TCP, Targets: filtertest.Targets(h.fam, 0, 4097)}
		s.Local = s.Targets[:1]
		cluster, local := s.Pools()
		key := proxier.FrontendKey{Addr: base, Port: 1}
		res := s.Resolve(&proxier.Frontend{
			Key:   key,
			Local: filtertest.Leg(cluster, proxier.HostProcesses, proxier.Reject), Outside: filtertest.Leg(local, proxier.NoOne, proxier.Drop),
		})
		h.world.Put(res.Key, res)
		h.sync(nil)
		h.settled("sync")
	})
}
