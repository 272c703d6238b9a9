package policy

import (
	"encoding/json"
	"flag"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"testing"

	"svcproxy.dev/svcproxy/proxier"
)

var (
	seed   = flag.Uint64("seed", 1, "the first world")
	worlds = flag.Int("worlds", 10000, "how many worlds are drawn")
)

// packetsOfWorld is how many packets are tried in each world.
const packetsOfWorld = 20

// TestResolve compares what Resolve decides with what is legal, for random packets in random worlds.
func TestResolve(t *testing.T) {
	verdicts := map[Verdict]int{}
	for n := *seed; n < *seed+uint64(*worlds); n++ {
		d := draw(n)
		w := d.world()
		states := statesOf(w)
		for range packetsOfWorld {
			p := d.packet(w)
			legal, got := Legal(w, p), answer(states, p)
			for o := range legal {
				verdicts[o.Verdict]++
			}
			if !same(legal, got) {
				t.Fatalf("seed %d: %+v\nlegal %v\n  got %v\n%s", n, p, legal, got, describe(w))
			}
		}
	}
	for _, v := range []Verdict{Balanced, Refused, Dropped, Untouched} {
		if verdicts[v] == 0 {
			t.Errorf("no packet was %s", v)
		}
	}
	t.Log(*worlds, "worlds,", *worlds*packetsOfWorld, "packets:", verdicts)
}

// same reports whether two sides have the same outcomes, with the same shares.
func same(a, b Outcomes) bool { return fmt.Sprint(reduced(a)) == fmt.Sprint(reduced(b)) }

// reduced returns outcomes with the least whole numbers that are in proportion to their shares.
func reduced(o Outcomes) Outcomes {
	divisor := 0
	for _, n := range o {
		for a := n; a != 0; {
			a, divisor = divisor%a, a
		}
	}
	out := Outcomes{}
	for k, n := range o {
		out[k] = n / max(divisor, 1)
	}
	return out
}

func describe(w *World) (text string) {
	text = fmt.Sprintf("host %+v\n", w.Host)
	for _, s := range w.Services {
		fields, _ := json.Marshal(s)
		short := regexp.MustCompile(`"[A-Za-z]+":(null|0|""|false|\{[^{}:]*\}),?`).ReplaceAllString(string(fields), "")
		text += fmt.Sprintf("service %s\nknown %+v\n", short, w.Known[s.Key])
	}
	return text
}

// statesOf resolves a world for both families.
func statesOf(w *World) map[bool]*proxier.State {
	node := nodeOf(w)
	states := map[bool]*proxier.State{}
	for _, fam := range []proxier.Family{proxier.IPv4, proxier.IPv6} {
		st := proxier.NewState(fam, node, nil)
		for _, s := range w.Services {
			known := proxier.Conditions{}
			for at, k := range w.Known[s.Key] {
				known[at] = proxier.Condition{Check: proxier.CheckResult(k.Check), Drained: k.Drained, Share: uint8(k.Share)}
			}
			put(st, proxier.Resolve(s, known, node, fam))
		}
		states[fam == proxier.IPv4] = st
	}
	return states
}

// put adds a service, which may have nothing in the family.
func put(st *proxier.State, res *proxier.Resolved) {
	if res == nil {
		return
	}
	st.Services[res.Key] = res
	for _, a := range res.RefusedVIPs {
		st.RefusedVIPs[a]++
	}
	for _, pool := range res.HairpinPools {
		for _, target := range pool.Targets {
			st.Hairpins[proxier.NewHairpin(target.AddrPort, pool.Protocol)]++
		}
	}
}

func nodeOf(w *World) *proxier.Node {
	h := &w.Host
	n := &proxier.Node{Name: h.Name, Zone: h.Zone, LocalCIDRs: h.LocalCIDRs, LocalInterfaces: h.LocalInterfaces,
		Masquerade: h.Masquerade, MarkBit: 14, ServiceCIDRs: h.ServiceCIDRs}
	for _, a := range h.Addresses {
		n.Addrs = append(n.Addrs, a.Addr)
		if a.Up {
			n.UpAddrs = append(n.UpAddrs, a.Addr)
		}
		if a.Primary {
			n.PrimaryAddrs = append(n.PrimaryAddrs, a.Addr)
		}
	}
	for _, list := range []*[]netip.Addr{&n.Addrs, &n.UpAddrs, &n.PrimaryAddrs} {
		slices.SortFunc(*list, netip.Addr.Compare)
	}
	n.NodePortAddrs = n.NodePortAddrsOf(h.NodePortAddresses)
	return n
}

// answer returns what a State says of a packet, as backends put it into the kernel.
func answer(states map[bool]*proxier.State, p Packet) Outcomes {
	st := states[p.To.Addr().Is4()]
	if frontends := frontendsAt(st, p); len(frontends) > 0 {
		return answerOf(frontends[0], st, p)
	}
	a := p.To.Addr()
	inCIDRs := slices.ContainsFunc(st.Host.ServiceCIDRs, func(r netip.Prefix) bool { return r.Contains(a) })
	exempt := slices.Contains(st.Host.ServiceCIDRExempt, a)
	if st.RefusedVIPs[a] > 0 || inCIDRs && !exempt {
		return only(Refused)
	}
	return only(Untouched)
}

// answerOf returns what a frontend does with a packet.
func answerOf(f *proxier.Frontend, st *proxier.State, p Packet) Outcomes {
	if !f.Admits(p.From) {
		return only(Dropped)
	}
	sender := proxier.Sender{Addr: p.From, Host: p.Process, Interface: p.Interface}
	r := f.RouteOf(sender, &st.Host)
	switch r.Action {
	case proxier.Drop:
		return only(Dropped)
	case proxier.Reject:
		return only(Refused)
	}
	out := Outcomes{}
	for _, target := range r.Pool.Targets {
		hairpin := target.Addr() == p.From && st.Hairpins[proxier.NewHairpin(target.AddrPort, r.Pool.Protocol)] > 0
		out[Outcome{Balanced, target.AddrPort, hairpin || r.Masquerade.Covers(sender, &st.Host)}] = int(target.Weight)
	}
	return out
}

// frontendsAt returns the frontends that a packet is addressed to, node ports last.
func frontendsAt(st *proxier.State, p Packet) (list []*proxier.Frontend) {
	for _, res := range st.Services {
		for _, f := range res.Frontends {
			if f.Key.Protocol == p.Protocol && f.Key.Port == p.To.Port() && slices.Contains(st.Host.Addrs(f), p.To.Addr()) {
				list = append(list, f)
			}
		}
	}
	slices.SortFunc(list, func(a, b *proxier.Frontend) int { return int(a.Key.Kind) - int(b.Key.Kind) })
	return list
}
