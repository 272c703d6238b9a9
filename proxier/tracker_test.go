package proxier

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"svcproxy/source"
)

// file is a unit of services, each written "name vip:port" or "name nodeport".
func file(name string, services ...string) source.Unit {
	u := source.Unit{ID: source.UnitID{Source: "file", Name: name}}
	for i, text := range services {
		u.Services = append(u.Services, claimant(text, source.Position{File: name, Line: i + 1, Col: 1}))
	}
	return u
}

func claimant(text string, pos source.Position) *source.Service {
	name, what, _ := strings.Cut(text, " ")
	s := &source.Service{Key: source.Key{Namespace: "default", Name: name}, Pos: pos}
	p := source.Port{Protocol: source.TCP, TargetPort: 8080}
	if ap, err := netip.ParseAddrPort(what); err == nil {
		s.VIPs, p.Port = []netip.Addr{ap.Addr()}, ap.Port()
	} else {
		p.Port = 80
		fmt.Sscan(what, &p.NodePort)
	}
	s.Ports = []source.Port{p}
	return s
}

func object(name string, created int64, services ...string) source.Unit {
	u := file(name, services...)
	u.ID.Source, u.Rank = "kubernetes", source.Rank{Class: 1, Since: created}
	for _, s := range u.Services {
		s.Pos = source.Position{}
	}
	return u
}

func set(units ...source.Unit) source.Changes { return source.Changes{Set: units} }

func gone(name string) source.Changes {
	return source.Changes{Delete: []source.UnitID{{Source: "file", Name: name}}}
}

// inUse lists "name@unit vip" for all services, and the faults of refused units.
func inUse(t *Tracker) string {
	var out []string
	t.services(func(s *source.Service, id source.UnitID) {
		out = append(out, fmt.Sprintf("%s@%s", s.Name, id.Name))
	})
	slices.Sort(out)
	for _, r := range t.Refusals() {
		for _, f := range r.Faults {
			out = append(out, f.String())
		}
	}
	return strings.Join(out, "\n")
}

func TestTrackerClaims(t *testing.T) {
	const v1, v2 = "10.96.0.1:80", "10.96.0.2:80"
	tests := []struct {
		name  string
		steps []source.Changes
		want  string
	}{
		{"together, the earlier name", []source.Changes{set(file("b", "y "+v1), file("a", "x "+v1))},
			"x@a\n" + `b:1:1: service "default/y": 10.96.0.1:80/tcp is taken by "default/x" (a:1:1)`},
		{"the first accepted keeps it", []source.Changes{set(file("b", "y "+v1)), set(file("a", "x "+v1))},
			"y@b\n" + `a:1:1: service "default/x": 10.96.0.1:80/tcp is taken by "default/y" (b:1:1)`},
		{"name", []source.Changes{set(file("a", "x "+v1)), set(file("b", "x "+v2))},
			"x@a\n" + `b:1:1: service "default/x" is already defined (a:1:1)`},
		{"node port", []source.Changes{set(file("a", "x 30080")), set(file("b", "y 30080"))},
			"x@a\n" + `b:1:1: service "default/y": node port 30080/tcp is taken by "default/x" (a:1:1)`},
		{"our own port", []source.Changes{set(file("a", "x 10349"))},
			`a:1:1: service "default/x": port 10349/tcp is the one svcproxy itself listens on; choose another port, or another http_address or metrics_address`},
		{"within one file", []source.Changes{set(file("a", "x "+v1, "y "+v1))},
			`a:2:1: service "default/y": 10.96.0.1:80/tcp is taken by "default/x" (a:1:1)`},
		{"same name within one file", []source.Changes{set(file("a", "x "+v1, "x "+v2))},
			`a:2:1: service "default/x" is already defined (a:1:1)`},
		{"the same service twice", []source.Changes{set(file("a", "x "+v1)), set(file("b", "x "+v1))},
			"x@a\n" + `b:1:1: service "default/x" is already defined (a:1:1)`},
		{"the same service twice within one file", []source.Changes{set(file("a", "x "+v1, "x "+v1))},
			`a:2:1: service "default/x" is already defined (a:1:1)`},
		{"its name from one, its address from another", []source.Changes{set(file("a", "x "+v1, "y "+v2)), set(file("b", "x "+v2))},
			"x@a\ny@a\n" + `b:1:1: service "default/x" is already defined (a:1:1)` + "\n" + `b:1:1: service "default/x": 10.96.0.2:80/tcp is taken by "default/y" (a:2:1)`},
		{"a file is refused whole", []source.Changes{set(file("a", "x "+v1)), set(file("b", "y "+v1, "z "+v2))},
			"x@a\n" + `b:1:1: service "default/y": 10.96.0.1:80/tcp is taken by "default/x" (a:1:1)`},
		{"and keeps what was accepted", []source.Changes{set(file("a", "x "+v1), file("b", "z "+v2)), set(file("b", "z "+v1))},
			"x@a\nz@b\n" + `b:1:1: service "default/z": 10.96.0.1:80/tcp is taken by "default/x" (a:1:1)`},
		{"released by a delete", []source.Changes{set(file("a", "x "+v1)), set(file("b", "y "+v1)), gone("a")}, "y@b"},
		{"released by an edit", []source.Changes{set(file("a", "x "+v1)), set(file("b", "y "+v1)), set(file("a", "x "+v2))}, "x@a\ny@b"},
		{"moved, target saved first", []source.Changes{set(file("a", "x "+v1, "y "+v2)), set(file("b", "y "+v2)), set(file("a", "x "+v1))}, "x@a\ny@b"},
		{"traded in one step", []source.Changes{set(file("a", "x "+v1), file("b", "y "+v2)), set(file("a", "x "+v2), file("b", "y "+v1))}, "x@a\ny@b"},
		{"traded one by one", []source.Changes{set(file("a", "x "+v1), file("b", "y "+v2)), set(file("a", "x "+v2)), set(file("b", "y "+v1))}, "x@a\ny@b"},
		{"chain of releases", []source.Changes{
			set(file("a", "x "+v1), file("b", "y "+v2)), set(file("b", "y "+v1)), set(file("c", "z "+v2)), gone("a")}, "y@b\nz@c"},
		{"older record wins at the start", []source.Changes{set(since(file("a", "x "+v1), 2), since(file("b", "y "+v1), 1))},
			"y@b\n" + `a:1:1: service "default/x": 10.96.0.1:80/tcp is taken by "default/y" (b:1:1)`},
		{"files before Kubernetes", []source.Changes{set(object("default/x", 1, "x "+v1)), set(file("a", "y "+v1))},
			"y@a\n" + `service "default/x": 10.96.0.1:80/tcp is taken by "default/y" (a:1:1)`},
		{"and back again", []source.Changes{set(object("default/x", 1, "x "+v1)), set(file("a", "y "+v1)), gone("a")}, "x@default/x"},
		{"the older object", []source.Changes{set(object("default/x", 2, "x "+v1), object("default/y", 1, "y "+v1))},
			"y@default/y\n" + `service "default/x": 10.96.0.1:80/tcp is taken by "default/y" (default/y)`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tr := NewTracker([]netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:10349")})
			for _, ch := range tt.steps {
				tr.Apply(ch)
			}
			if got := inUse(tr); got != tt.want {
				t.Errorf("\n got: %s\nwant: %s", got, tt.want)
			}
		})
	}
}

func since(u source.Unit, ns int64) source.Unit { u.Rank.Since = ns; return u }

// A move between files is one transition of one service, never a removal.
func TestTrackerMoveHasNoGap(t *testing.T) {
	tr := NewTracker(nil)
	tr.Apply(set(file("a", "x 10.96.0.1:80")))
	tr.Apply(set(file("b", "x 10.96.0.1:81")))
	got := tr.Apply(gone("a"))
	if len(got) != 1 || got[0].Old == nil || got[0].New == nil || got[0].New.Ports[0].Port != 81 {
		t.Errorf("transitions %+v, want one change of x", got)
	}
}

// Whatever happens, transitions add up to the services in use, no claim has two
// owners, and claims are exactly those of the services in use.
func TestTrackerProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tr := NewTracker(nil)
		seen := map[source.Key]*source.Service{}
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			for _, x := range tr.Apply(randomStep(t)) {
				if o := seen[x.key()]; (o == nil) != (x.Old == nil) || o != nil && !o.Equal(x.Old) {
					t.Fatalf("transition of %s from %v, but it was %v", x.key(), x.Old, o)
				}
				if x.New == nil {
					delete(seen, x.key())
				} else {
					seen[x.key()] = x.New
				}
			}
			checkClaims(t, tr, seen)
		}
	})
}

func randomStep(t *rapid.T) source.Changes {
	var ch source.Changes
	used := map[string]bool{}
	for range rapid.IntRange(1, 3).Draw(t, "units") {
		name := rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "unit")
		if used[name] {
			continue
		}
		used[name] = true
		if rapid.IntRange(0, 4).Draw(t, "delete") == 0 {
			ch.Delete = append(ch.Delete, source.UnitID{Source: "file", Name: name})
			continue
		}
		u := file(name, rapid.SliceOfN(rapid.SampledFrom([]string{
			"x 10.96.0.1:80", "x 10.96.0.2:80", "y 10.96.0.1:80", "y 10.96.0.3:80", "z 10.96.0.3:80", "w 30080", "v 30080",
		}), 0, 3).Draw(t, "services")...)
		if name == "d" {
			u.Rank = source.Rank{Class: 1, Since: 1}
		}
		ch.Set = append(ch.Set, u)
	}
	return ch
}

func checkClaims(t *rapid.T, tr *Tracker, seen map[source.Key]*source.Service) {
	n, services := 0, 0
	tr.services(func(s *source.Service, id source.UnitID) {
		services++
		if seen[s.Key] == nil {
			t.Fatalf("%s is in use, but no transition said so", s.Key)
		}
		for c := range claims(s) {
			n++
			if h := tr.claims[c]; h.svc != s || h.unit.ID != id {
				t.Fatalf("%s of %s belongs to %+v", c, s.Key, h)
			}
		}
	})
	if n != len(tr.claims) || services != len(seen) {
		t.Fatalf("%d claims of services, %d held; %d services, %d seen", n, len(tr.claims), services, len(seen))
	}
}
