package layout

import (
	"slices"
	"testing"

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
	return s.Resolve(&policy.Frontend{Key: policy.FrontendKey{Addr: backendtest.Addr(fam, "vip", 0), Port: 80}, Outside: route, FromLocal: route})
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
		start := Render(w.State)
		m := NewMirror(start, start.Checksums(), &w.Host)
		u := m.Follow(d, w.Put(res.Key, hashedService(fam, source.ClientIPPort, fewer...)))
		before, after := ownersOf(all), ownersOf(fewer)
		want := 0
		for i := range before {
			if before[i] != after[i] {
				want++
			}
		}
		if n := sizeOf(u); n != want || u.ChangesStructure() {
			t.Errorf("%s: %d elements change, want %d of %d; chains or sets too: %v", fam, n, want, len(before), u.ChangesStructure())
		}
		for _, e := range u.Edits {
			for c := range chain(e.Added(), e.Removed()) {
				t.Fatalf("%s: %s: %x is added or removed", fam, e.Set.Name(), c.Key)
			}
			if e.Set.Name() != "maglev-ip-port-slots-8191" {
				t.Fatalf("%s: set %s changes", fam, e.Set.Name())
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
