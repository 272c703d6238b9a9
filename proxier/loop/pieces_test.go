package loop

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/internal/logtest"
	testpace "svcproxy.dev/svcproxy/internal/pace" // pace is a type here
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/policy/policytest"
	"svcproxy.dev/svcproxy/source"
)

// large returns a file with one service of 100 ports at an address.
func large(name, addr string, edit ...func(*source.Service)) source.Unit {
	svc := policytest.Service(func(s *source.Service) {
		s.Key.Name, s.VIPs, s.Ports = name, policytest.Addrs(addr), nil
		for port := range uint16(100) {
			s.Ports = append(s.Ports, source.Port{Name: fmt.Sprint("p", port), Protocol: source.TCP, Port: port + 1, TargetPort: 8080})
		}
	}, policytest.Endpoints("10.0.0.1"))
	for _, e := range edit {
		e(svc)
	}
	return source.Unit{ID: source.UnitID{Source: "file", Name: name}, Services: []*source.Service{svc}}
}

// smallPieces makes pieces of some ten frontends, so that a service of 100 ports comes in ten.
func smallPieces(c *Config) { c.Piece = 50 }

// frontends returns how many a service has in the kernel.
func (k *kernel) frontends(name string) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.services[source.Key{Namespace: "default", Name: name}].AllFrontends())
}

// syncsSoFar returns what the Syncs held, and forgets it.
func (k *kernel) syncsSoFar() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	list := k.syncs
	k.syncs = nil
	return list
}

// await waits until a service has as many frontends in the kernel.
func (k *kernel) await(t *testing.T, name string, n int) {
	t.Helper()
	testpace.UntilOr(t, func() bool { return k.frontends(name) == n }, func() string {
		return fmt.Sprintf("%s has %d frontends, want %d", name, k.frontends(name), n)
	})
}

// Large services come in pieces, one of either at a time, and other changes with the next piece.
func TestLargeServicesComeInPieces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &kernel{took: time.Second}
		var log logtest.Text
		l := start(t, k, smallPieces, func(c *Config) { c.Log = slog.New(slog.NewTextHandler(&log, nil)) })
		l.Synced("file")
		time.Sleep(5 * time.Second)
		k.syncsSoFar()
		l.Apply(policytest.Set(large("big", "10.96.0.1"), large("huge", "10.96.0.3"), policytest.File("small", "small 10.96.0.2:80")))
		k.await(t, "small", 1)
		if a, b := k.frontends("big"), k.frontends("huge"); a != 10 || b != 0 {
			t.Errorf("%d and %d frontends of large services in the first Sync", a, b)
		}
		time.Sleep(5 * time.Second)
		list := l.Status().Services
		if w := list[0].Warnings; len(w) != 1 || w[0] != "it is large: 30 of 100 frontends are in the kernel (ipv4)" {
			t.Errorf("status says %q", w)
		}
		pending := 0
		for _, f := range list[0].Frontends {
			if f.Action == "pending" {
				pending++
			}
		}
		if pending != 70 || len(list[0].Frontends) != 100 || list[2].Frontends[0].Action == "pending" {
			t.Errorf("%d of %d frontends are pending", pending, len(list[0].Frontends))
		}
		l.Apply(policytest.Set(policytest.File("late", "late 10.96.0.4:80"))) // while a piece is written
		k.await(t, "late", 1)
		if n := k.frontends("big") + k.frontends("huge"); n > 80 {
			t.Errorf("%d frontends of large services when the other change came", n)
		}
		time.Sleep(10 * time.Millisecond)
		if text := log.String(); !strings.Contains(text, "service=default/late") || strings.Contains(text, "service=default/big") {
			t.Errorf("a small service is not told of before the large ones:\n%s", text)
		}
		k.await(t, "huge", 100)
		time.Sleep(3 * time.Second)
		for _, name := range []string{"big", "huge", "small", "late"} {
			if n := strings.Count(log.String(), "service=default/"+name+" change=\"added"); n != 1 {
				t.Errorf("%s: %d lines\n%s", name, n, &log)
			}
		}
		if st := l.Status().Services[0]; len(st.Warnings) > 0 || len(st.Frontends) != 100 || st.Frontends[0].Action != "balance" {
			t.Errorf("status: %v, %+v", st.Warnings, st.Frontends[0])
		}
		if n := len(k.syncsSoFar()); n != 20 {
			t.Errorf("%d syncs, want 20", n)
		}
		if err := l.Held(t.Context(), 0); err != nil {
			t.Error(err)
		}
	})
}

// A change of few frontends of a large service is that of these.
func TestSmallChangeOfALargeService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &kernel{}
		l := start(t, k, smallPieces)
		l.Apply(policytest.Set(large("big", "10.96.0.1")))
		l.Synced("file")
		k.expect(t, "full")
		l.Apply(policytest.Set(large("big", "10.96.0.1", func(s *source.Service) { s.Ports[7].TargetPort = 99 })))
		k.expect(t, "big-1+1")
		l.Apply(policytest.Set(large("big", "10.96.0.1", func(s *source.Service) { s.Ports[7].TargetPort = 99; s.Ports = s.Ports[:95] })))
		k.expect(t, "big-5+0")
		l.Apply(policytest.Set(large("big", "10.96.0.1", func(s *source.Service) { s.Ports[7].TargetPort = 99; s.Ports = s.Ports[:95] })))
		k.expect(t)
		l.Apply(policytest.Set(large("big", "10.96.0.1", func(s *source.Service) { s.Ports[7].TargetPort = 99; s.Ports = s.Ports[:95]; s.Announce = source.BGP })))
		k.expect(t, "big-0+0")
	})
}

// What another service gives up comes at once to a growing one, and the reverse, and from one growing
// service to another.
func TestPiecesMoveAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &kernel{took: time.Second}
		l := start(t, k, smallPieces)
		l.Apply(policytest.Set(policytest.File("a", "small 10.96.0.1:50")))
		l.Synced("file")
		time.Sleep(5 * time.Second)
		l.Apply(source.Changes{Set: []source.Unit{large("big", "10.96.0.1")}, Delete: []source.UnitID{{Source: "file", Name: "a"}}})
		k.await(t, "small", 0)
		if n := k.frontends("big"); n != 11 {
			t.Errorf("%d frontends when the other service was gone, want a piece and one", n)
		}
		l.Apply(source.Changes{Set: []source.Unit{policytest.File("a", "small 10.96.0.1:100")}, Delete: []source.UnitID{{Source: "file", Name: "big"}}})
		k.await(t, "small", 1)
		k.await(t, "big", 0)
		l.Apply(source.Changes{Set: []source.Unit{large("big", "10.96.0.1")}, Delete: []source.UnitID{{Source: "file", Name: "a"}}})
		k.await(t, "big", 100)
		l.Apply(source.Changes{Set: []source.Unit{large("huge", "10.96.0.1")}, Delete: []source.UnitID{{Source: "file", Name: "big"}}})
		for k.frontends("big") > 0 {
			time.Sleep(100 * time.Millisecond)
			if a, b := k.frontends("big"), k.frontends("huge"); a+b != 100 {
				t.Fatalf("%d and %d frontends while one takes over from the other, want 100 in all", a, b)
			}
		}
		l.Apply(source.Changes{Set: []source.Unit{policytest.File("a", "small 10.96.0.1:100")}, Delete: []source.UnitID{{Source: "file", Name: "huge"}}})
		k.await(t, "small", 1)
		k.await(t, "huge", 0)
	})
}

// A growing service comes to be what is wanted by then: changed, or gone, or as it was.
func TestPiecesOfAChangingService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &kernel{took: time.Second}
		l := start(t, k, smallPieces)
		l.Synced("file")
		time.Sleep(5 * time.Second)
		l.Apply(policytest.Set(large("big", "10.96.0.1")))
		k.await(t, "big", 30)
		l.Apply(policytest.Set(large("big", "10.96.0.1", policytest.Endpoints("10.0.0.1", "10.0.0.2"))))
		k.await(t, "big", 100)
		time.Sleep(30 * time.Second)
		k.mu.Lock()
		for _, p := range k.services[source.Key{Namespace: "default", Name: "big"}].Pools {
			if len(p.Targets) != 2 {
				t.Errorf("%d targets", len(p.Targets))
			}
		}
		k.mu.Unlock()
		l.Apply(policytest.Gone("big"))
		k.await(t, "big", 60)
		l.Apply(policytest.Set(large("big", "10.96.0.1", policytest.Endpoints("10.0.0.1", "10.0.0.2")))) // it comes back
		k.await(t, "big", 100)
		l.Apply(policytest.Gone("big"))
		time.Sleep(3 * time.Second)
		l.Apply(policytest.Set(policytest.File("big", "big 10.96.0.1:1")))
		k.await(t, "big", 1)
		time.Sleep(time.Minute)
		if err := l.Held(t.Context(), 0); err != nil {
			t.Error(err)
		}
	})
}

// After a failed Sync everything that is wanted comes at once, and likewise in a resync.
func TestPiecesAfterAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &kernel{took: time.Second}
		l := start(t, k, smallPieces)
		l.Synced("file")
		time.Sleep(5 * time.Second)
		l.Apply(policytest.Set(large("big", "10.96.0.1")))
		k.await(t, "big", 20)
		k.failWith(errors.New("no"))
		time.Sleep(1500 * time.Millisecond)
		k.failWith(nil)
		k.syncsSoFar()
		k.await(t, "big", 100)
		if got := k.syncsSoFar(); !slices.Equal(got, []string{"full"}) {
			t.Errorf("syncs %q", got)
		}
		l.Apply(policytest.Gone("big"))
		k.await(t, "big", 80)
		l.FullSync()
		time.Sleep(2500 * time.Millisecond)
		if n := k.frontends("big"); n != 0 {
			t.Errorf("%d frontends after the resync", n)
		}
	})
}

// A plan is about all that is wanted, from what is in the kernel.
func TestPlanOfAGrowingService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &kernel{took: time.Second}
		l := start(t, k, smallPieces)
		l.Synced("file")
		time.Sleep(5 * time.Second)
		l.Apply(policytest.Set(large("big", "10.96.0.1")))
		k.await(t, "big", 20)
		p, err := l.Plan(t.Context())
		fatal.If(t, err)
		fam := p.Families[0]
		if len(fam.Services) != 1 || len(fam.Services[0].New.Frontends) != 100 || len(fam.Services[0].Old.Frontends) < 20 ||
			len(fam.Services[0].Old.Frontends) > 90 || len(fam.After) != 1 || len(p.Edits) != 1 {
			t.Errorf("plan: %d services, from %d frontends to %d, %d edits",
				len(fam.Services), len(fam.Services[0].Old.AllFrontends()), len(fam.Services[0].New.AllFrontends()), len(p.Edits))
		}
	})
}

// The difference of two frontends is seen, whichever field it is in.
func TestFrontendEqual(t *testing.T) {
	pool, other := new(policy.Pool), new(policy.Pool)
	f := &policy.Frontend{Outside: policy.Route{Pool: pool}, FromLocal: policy.Route{Pool: pool}}
	same := map[*policy.Pool]*policy.Pool{pool: pool, other: other}
	edits := map[string]func(*policy.Frontend){
		"Key": func(f *policy.Frontend) { f.Key.Kind = policy.External }, "ServicePort": func(f *policy.Frontend) { f.ServicePort.Port = "x" },
		"Placed": func(f *policy.Frontend) { f.Placed = true }, "NodePortAddrs": func(f *policy.Frontend) { f.NodePortAddrs = policytest.Addrs("10.0.0.1") },
		"Outside": func(f *policy.Frontend) { f.Outside.Pool = other }, "FromLocal": func(f *policy.Frontend) { f.FromLocal.Action = policy.Drop },
		"Restricted": func(f *policy.Frontend) { f.Restricted = true }, "SourceRanges": func(f *policy.Frontend) { f.SourceRanges = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")} },
	}
	for field := range reflect.TypeFor[policy.Frontend]().Fields() {
		edit := edits[field.Name]
		if edit == nil {
			t.Errorf("%s: is it compared?", field.Name)
			continue
		}
		g, h := *f, *f
		edit(&g)
		if reuseFrontend(f, &g, same) == f || reuseFrontend(f, &h, same) != f {
			t.Errorf("%s: not compared", field.Name)
		}
	}
}

// randomLarge returns a service of one of the three names, on few addresses and ports.
func randomLarge(t *rapid.T, name string) *source.Service {
	s := policytest.Service(policytest.Endpoints([]string{"10.0.0.1", "10.0.0.2", "10.0.0.3"}[:rapid.IntRange(0, 3).Draw(t, "endpoints")]...))
	s.Key.Name, s.Ports, s.VIPs = name, nil, nil
	for i := range byte(8) {
		a := netip.AddrFrom4([4]byte{10, 96, 0, i})
		switch rapid.IntRange(0, 3).Draw(t, "use") {
		case 0, 1:
			s.VIPs = append(s.VIPs, a)
		case 2:
			s.ExternalIPs = append(s.ExternalIPs, a)
		}
	}
	for i := range uint16(rapid.IntRange(1, 6).Draw(t, "ports")) {
		p := source.Port{Name: fmt.Sprint("p", i), Protocol: source.TCP, Port: 80 + i, TargetPort: uint16(rapid.IntRange(8080, 8082).Draw(t, "target"))}
		if rapid.Bool().Draw(t, "node port") {
			p.NodePort = 30000 + i
		}
		s.Ports = append(s.Ports, p)
	}
	s.InternalTrafficPolicy = rapid.SampledFrom([]source.TrafficPolicy{source.Cluster, source.Local}).Draw(t, "internal")
	s.ExternalTrafficPolicy = rapid.SampledFrom([]source.TrafficPolicy{source.Cluster, source.Local}).Draw(t, "external")
	s.Masquerade = rapid.SampledFrom([]source.Masquerading{source.MasqueradeAuto, source.MasqueradeNever}).Draw(t, "masquerade")
	return s
}

// claimed is like a Tracker: what another service has of a place is left out.
func claimed(all map[source.Key]*source.Service) map[source.Key]*source.Service {
	taken := make(map[string]bool)
	out := make(map[source.Key]*source.Service)
	for _, key := range slices.SortedFunc(maps.Keys(all), source.Key.Compare) {
		s := *all[key]
		s.Without = nil
		claim := func(a netip.Addr, port uint16) {
			if at := fmt.Sprint(a, port); taken[at] {
				s.Without = append(s.Without, source.PortAddr{Protocol: source.TCP, AddrPort: netip.AddrPortFrom(a, port)})
			} else {
				taken[at] = true
			}
		}
		for _, p := range s.Ports {
			for _, a := range slices.Concat(s.VIPs, s.ExternalIPs) {
				claim(a, p.Port)
			}
			if p.NodePort != 0 {
				claim(netip.Addr{}, p.NodePort)
			}
		}
		out[key] = &s
	}
	return out
}

// apart is a kernel in which frontends of a pool need not change together.
type apart struct{ *kernel }

func (apart) SharesPool(f *policy.Frontend) bool { return f.Split() }

// Whatever changes, when and in whatever pieces: each Sync leads from one State to the next, whose
// frontends are each of one service, and the last State is that of all services at once.
func TestPiecesOfRandomChangesAddUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k := &kernel{}
		var b proxier.Backend = k
		if rapid.Bool().Draw(t, "pools apart") {
			k.apart, b = true, apart{k}
		}
		f := testFamily(b)
		f.cfg.Piece = rapid.IntRange(1, 60).Draw(t, "piece")
		f.syncNow(t.Context())
		all, told := make(map[source.Key]*source.Service), make(map[source.Key]*source.Service)
		order := uint64(0)
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			switch rapid.IntRange(0, 9).Draw(t, "step") {
			case 0:
				k.failWith(errors.New("no"))
				f.syncNow(t.Context())
				k.failWith(nil)
			case 1, 2, 3:
				f.syncNow(t.Context())
			default:
				for _, name := range []string{"a", "b", "c"} {
					key := source.Key{Namespace: "default", Name: name}
					switch rapid.IntRange(0, 3).Draw(t, "change") {
					case 0:
						delete(all, key)
					case 1, 2:
						all[key] = randomLarge(t, name)
					}
				}
				now := claimed(all)
				o := orderOf(now, told)
				told = now
				order++
				o.number = order
				f.handleOrder(o)
			}
			if k.err != "" {
				t.Fatal(k.err)
			}
		}
		for syncs := 0; f.due.dirty || f.news.err != nil; syncs++ {
			if f.syncNow(t.Context()); syncs > 2000 {
				t.Fatal("it does not end")
			}
			if k.err != "" {
				t.Fatal(k.err)
			}
		}
		want := policy.EmptyState(policy.IPv4, f.desired.node)
		for key, s := range told {
			policy.NewChanges().Put(want, key, policy.Resolve(s, nil, f.desired.node, policy.IPv4))
		}
		if diff := cmp.Diff(want, f.desired.next, cmpopts.EquateEmpty(), cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{}, policy.Target{}, policy.Hairpin{})); diff != "" {
			t.Fatalf("the State at the end (-want +got):\n%s", diff)
		}
		if f.news.lastInKernel != order {
			t.Fatalf("held %d of %d", f.news.lastInKernel, order)
		}
	})
}

// orderOf returns an order of what differs.
func orderOf(now, was map[source.Key]*source.Service) order {
	o := order{open: true, queued: time.Now(), services: make(map[source.Key]policy.Subject)}
	for key := range was {
		o.services[key] = policy.Subject{}
	}
	for key, s := range now {
		o.services[key] = policy.Subject{Service: s}
	}
	return o
}
