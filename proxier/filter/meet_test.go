package filter

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"svcproxy/netutil/ipset"
	"svcproxy/proxier"
	"svcproxy/proxier/filter/filtertest"
	"svcproxy/source"
)

// A node port and an address of this host may be the same place. Whoever IPVS
// balances there is alone in rules and sets, whatever way leads to that.
func TestAddressMeetsNodePort(t *testing.T) {
	families(t, func(t *testing.T, fam proxier.Family) {
		rapid.Check(t, func(rt *rapid.T) { checkMeetings(rt, fam) })
	})
}

func checkMeetings(rt *rapid.T, fam proxier.Family) {
	pick := func(n int) int { return rapid.IntRange(0, n-1).Draw(rt, "pick") }
	w := filtertest.NewWorld(fam)
	r := NewIPVSRules(fam)
	if err := r.Reset(w.State); err != nil {
		rt.Fatal(err)
	}
	got := pictureOf(r, w.State)
	for range pick(12) {
		change := map[source.Key]*proxier.Resolved{}
		for range 1 + pick(3) {
			res := meeting(w, pick)
			if change[res.Key] = res; pick(4) == 0 {
				change[res.Key] = nil
			}
		}
		got.apply(r, r.Update(w.PutAll(change)))
		fresh := NewIPVSRules(fam)
		if err := fresh.Reset(w.State); err != nil {
			rt.Fatal(err)
		}
		want := pictureOf(fresh, w.State)
		if diff := cmp.Diff(want.chains, got.chains); diff != "" {
			rt.Fatalf("chains (-reset +deltas):\n%s", diff)
		}
		if diff := cmp.Diff(want.members, got.members, cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
			rt.Fatalf("sets (-reset +deltas):\n%s", diff)
		}
		for _, res := range w.Services {
			checkAlone(rt, r, got, res.Frontends[0])
		}
	}
}

// meeting returns a service that is at one of few places, as an address or as a node port.
func meeting(w *filtertest.World, pick filtertest.Pick) *proxier.Resolved {
	n, kind := pick(2), []proxier.Kind{proxier.External, proxier.NodePort}[pick(2)]
	s := filtertest.Service{Name: fmt.Sprintf("%s-%d", kind, n), Protocol: source.TCP}
	s.Targets = filtertest.Targets(w.Family, 100*n+10*int(kind), pick(3))
	s.Local = s.Targets[:min(len(s.Targets), pick(2))]
	cluster, local := s.Pools()
	f := &proxier.Frontend{Key: proxier.FrontendKey{Addr: w.Host.NodePortAddrs[0], Port: uint16(30000 + n), Kind: kind}}
	if kind == proxier.NodePort {
		f.Key.Addr = w.Family.Unspecified()
	}
	f.Local = filtertest.Leg(cluster, proxier.Masquerade(pick(4)), proxier.Reject)
	if f.Outside = f.Local; pick(2) == 0 {
		f.Outside = filtertest.Leg(local, proxier.NoOne, proxier.Drop)
	}
	return s.Resolve(f)
}

// checkAlone fails if another service has a part in what is balanced for an address.
func checkAlone(rt *rapid.T, r *Rules, p picture, f *proxier.Frontend) {
	if !r.takes(f) {
		return
	}
	own := map[string]bool{}
	for _, set := range servedSets(f) {
		own[r.words.set(set)] = true
	}
	e := ipset.Entry{Addr: f.Key.Addr, Protocol: uint8(f.Key.Protocol), Port: f.Key.Port}
	for set, members := range p.members {
		if _, in := members[e]; in != own[set] {
			rt.Fatalf("%v of %v is in %s: %v, want %v", e, f.ServicePort, set, in, own[set])
		}
	}
	end := fmt.Sprintf("--dport %d -m comment --comment \"%s\" -j ACCEPT\n", f.Key.Port, f.ServicePort)
	text := p.chains[Services]
	at := strings.Index(text, end)
	if ports := strings.Index(text, "-j "+NodePorts); at < 0 || ports < at {
		rt.Fatalf("packets to %v of %v go on to node ports:\n%s", e, f.ServicePort, text)
	}
}
