package layout

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"svcproxy.dev/svcproxy/internal/maglev"
	"svcproxy.dev/svcproxy/proxier/backendtest"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// hashedService returns a service of 20 endpoints, of which some are targets.
func hashedService(fam policy.Family, on source.HashOn, targets ...policy.Target) *policy.Resolved {
	s := backendtest.Service{Name: "web", Protocol: source.TCP, Targets: targets}
	pool, _ := s.Pools()
	pool.Hash = policy.Hash{On: on, Endpoints: 20}
	route := backendtest.Route(pool, policy.NoOne, policy.Reject)
	return s.Resolve(&policy.Frontend{Key: policy.FrontendKey{Addr: backendtest.Addr(fam, "vip", 0), Port: 80}, Outside: route, Local: route})
}

// An endpoint that leaves, or comes back, changes the slots that the table of every other
// host changes, and nothing else: no chain, and no set.
func TestHashedSlotsAreNotRewritten(t *testing.T) {
	for _, fam := range []policy.Family{policy.IPv4, policy.IPv6} {
		d, w := Dialects[fam], backendtest.NewWorld(fam)
		all := backendtest.Targets(fam, 0, 20)
		fewer := slices.Delete(slices.Clone(all), 7, 8)
		res := hashedService(fam, source.ClientIPPort, all...)
		w.Put(res.Key, res)
		m := mirrorOf(t, d, w.State)
		u, err := m.Follow(d, w.Put(res.Key, hashedService(fam, source.ClientIPPort, fewer...)))
		if err != nil {
			t.Fatal(err)
		}
		before, after := ownersOf(all), ownersOf(fewer)
		want := 0
		for i := range before {
			if before[i] != after[i] {
				want++
			}
		}
		if len(u.elements) != want || u.ChangesStructure() {
			t.Errorf("%s: %d elements change, want %d of %d; chains or sets too: %v", fam, len(u.elements), want, len(before), u.ChangesStructure())
		}
		for _, c := range u.elements {
			if !c.exists || !c.existed || c.set.Name() != "maglev-ip-port-slots-8191" {
				t.Fatalf("%s: %s: %x existed %v, exists %v", fam, c.set.Name(), c.key, c.existed, c.exists)
			}
		}
	}
}

// ownersOf returns whose each slot of a service of 20 endpoints is.
func ownersOf(targets []policy.Target) (list []policy.Target) {
	for _, i := range maglev.Fill(nil, maglev.Size(20), hashedEndpoints(&policy.Pool{Targets: targets})) {
		list = append(list, targets[i])
	}
	return list
}

func mirrorOf(t *testing.T, d *Dialect, st *policy.State) *Mirror {
	t.Helper()
	c := Render(d, st)
	m := &Mirror{Tallies: c.Tallies(), Chains: map[string]*KernelChain{}, Pools: c.Pools, Host: st.Host}
	list, err := d.Marshal(c.Chains)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range list {
		m.Chains[w.Name] = w
	}
	return m
}

// Services have the chains of one another: one for each size and each thing hashed.
func TestHashedChains(t *testing.T) {
	w := backendtest.NewWorld(policy.IPv6)
	for i, on := range []source.HashOn{source.ClientIP, source.ClientIPPort, source.ClientIP, source.ClientIPPort} {
		res := hashedService(w.Family, on, backendtest.Targets(w.Family, 0, 1+i)...)
		res.Key.Name = string(rune('a' + i))
		res.Frontends[0].Key.Port += uint16(i)
		w.Put(res.Key, res)
	}
	got := map[string][]string{}
	for _, c := range Render(Dialects[w.Family], w.State).Chains {
		if strings.HasPrefix(c.Name, "pick-") {
			for _, r := range c.rules {
				got[c.Name] = append(got[c.Name], r.String())
			}
		}
	}
	want := map[string][]string{
		"pick-maglev-ip-8191": {
			"dnat ip6 to ip6 daddr . meta l4proto . th dport . jhash ip6 saddr mod 8191 seed 0x6d61676c map @maglev-ip-slots-8191"},
		"pick-maglev-ip-port-8191": {
			"dnat ip6 to ip6 daddr . meta l4proto . th dport . jhash ip6 saddr . th sport mod 8191 seed 0x6d61676c map @maglev-ip-port-slots-8191"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("chains (-want +got):\n%s", diff)
	}
}
