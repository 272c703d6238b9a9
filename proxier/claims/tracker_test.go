package claims

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"svcproxy.dev/svcproxy/proxier/policy/policytest"
	"svcproxy.dev/svcproxy/source"
)

// inUse lists "name@unit without what another has" for all services, and the faults of refused units.
func inUse(t *Tracker) string {
	var out []string
	t.Services(func(s *source.Service, id source.UnitID) {
		line := fmt.Sprintf("%s@%s", s.Name, id.Name)
		for _, w := range s.Without {
			line += " without " + Claim{Addr: w.Addr(), Protocol: w.Protocol, Port: w.Port()}.String()
		}
		out = append(out, line)
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
	const v1, v2, v3 = "10.96.0.1:80", "10.96.0.2:80", "10.96.0.3:80"
	tests := []struct {
		name  string
		steps []source.Changes
		want  string
	}{
		{"together, the earlier name", []source.Changes{policytest.Set(policytest.File("b", "y "+v1), policytest.File("a", "x "+v1))},
			"x@a\n" + `b:1:1: service "default/y": 10.96.0.1:80/tcp is taken by "default/x" (a:1:1)`},
		{"the first accepted keeps it", []source.Changes{policytest.Set(policytest.File("b", "y "+v1)), policytest.Set(policytest.File("a", "x "+v1))},
			"y@b\n" + `a:1:1: service "default/x": 10.96.0.1:80/tcp is taken by "default/y" (b:1:1)`},
		{"name", []source.Changes{policytest.Set(policytest.File("a", "x "+v1)), policytest.Set(policytest.File("b", "x "+v2))},
			"x@a\n" + `b:1:1: service "default/x" is already defined (a:1:1)`},
		{"node port", []source.Changes{policytest.Set(policytest.File("a", "x 30080")), policytest.Set(policytest.File("b", "y 30080"))},
			"x@a\n" + `b:1:1: service "default/y": node port 30080/tcp is taken by "default/x" (a:1:1)`},
		{"our own port", []source.Changes{policytest.Set(policytest.File("a", "x 10349"))},
			`a:1:1: service "default/x": port 10349/tcp is the one svcproxy itself listens on; choose another port, or another http_address, metrics_address or port of [bgp]`},
		{"within one file", []source.Changes{policytest.Set(policytest.File("a", "x "+v1, "y "+v1))},
			`a:2:1: service "default/y": 10.96.0.1:80/tcp is taken by "default/x" (a:1:1)`},
		{"same name within one file", []source.Changes{policytest.Set(policytest.File("a", "x "+v1, "x "+v2))},
			`a:2:1: service "default/x" is already defined (a:1:1)`},
		{"the same service twice", []source.Changes{policytest.Set(policytest.File("a", "x "+v1)), policytest.Set(policytest.File("b", "x "+v1))},
			"x@a\n" + `b:1:1: service "default/x" is already defined (a:1:1)`},
		{"the same service twice within one file", []source.Changes{policytest.Set(policytest.File("a", "x "+v1, "x "+v1))},
			`a:2:1: service "default/x" is already defined (a:1:1)`},
		{"its name from one, its address from another", []source.Changes{policytest.Set(policytest.File("a", "x "+v1, "y "+v2)), policytest.Set(policytest.File("b", "x "+v2))},
			"x@a\ny@a\n" + `b:1:1: service "default/x" is already defined (a:1:1)` + "\n" + `b:1:1: service "default/x": 10.96.0.2:80/tcp is taken by "default/y" (a:2:1)`},
		{"a file is refused whole", []source.Changes{policytest.Set(policytest.File("a", "x "+v1)), policytest.Set(policytest.File("b", "y "+v1, "z "+v2))},
			"x@a\n" + `b:1:1: service "default/y": 10.96.0.1:80/tcp is taken by "default/x" (a:1:1)`},
		{"and keeps what was accepted", []source.Changes{policytest.Set(policytest.File("a", "x "+v1), policytest.File("b", "z "+v2)), policytest.Set(policytest.File("b", "z "+v1))},
			"x@a\nz@b\n" + `b:1:1: service "default/z": 10.96.0.1:80/tcp is taken by "default/x" (a:1:1)`},
		{"released by a delete", []source.Changes{policytest.Set(policytest.File("a", "x "+v1)), policytest.Set(policytest.File("b", "y "+v1)), policytest.Gone("a")}, "y@b"},
		{"released by an edit", []source.Changes{policytest.Set(policytest.File("a", "x "+v1)), policytest.Set(policytest.File("b", "y "+v1)), policytest.Set(policytest.File("a", "x "+v2))}, "x@a\ny@b"},
		{"moved, target saved first", []source.Changes{policytest.Set(policytest.File("a", "x "+v1, "y "+v2)), policytest.Set(policytest.File("b", "y "+v2)), policytest.Set(policytest.File("a", "x "+v1))}, "x@a\ny@b"},
		{"traded in one step", []source.Changes{policytest.Set(policytest.File("a", "x "+v1), policytest.File("b", "y "+v2)), policytest.Set(policytest.File("a", "x "+v2), policytest.File("b", "y "+v1))}, "x@a\ny@b"},
		{"traded one by one", []source.Changes{policytest.Set(policytest.File("a", "x "+v1), policytest.File("b", "y "+v2)), policytest.Set(policytest.File("a", "x "+v2)), policytest.Set(policytest.File("b", "y "+v1))}, "x@a\ny@b"},
		{"traded beside a refused file", []source.Changes{
			policytest.Set(policytest.File("a", "x "+v1), policytest.File("b", "y "+v2), policytest.File("e", "e "+v3)), policytest.Set(policytest.File("d", "d "+v3)), policytest.Set(policytest.File("a", "x "+v2)), policytest.Set(policytest.File("b", "y "+v1))},
			"e@e\nx@a\ny@b\n" + `d:1:1: service "default/d": 10.96.0.3:80/tcp is taken by "default/e" (e:1:1)`},
		{"traded beside a new file that is refused", []source.Changes{
			policytest.Set(policytest.File("a", "x "+v1), policytest.File("b", "y "+v2), policytest.File("e", "e "+v3)), policytest.Set(policytest.File("a", "x "+v2), policytest.File("b", "y "+v1), policytest.File("d", "d "+v3))},
			"e@e\nx@a\ny@b\n" + `d:1:1: service "default/d": 10.96.0.3:80/tcp is taken by "default/e" (e:1:1)`},
		{"traded with a third that wants it too", []source.Changes{
			policytest.Set(policytest.File("b", "x "+v1), policytest.File("c", "y "+v2)), policytest.Set(policytest.File("a", "z "+v1)), policytest.Set(policytest.File("b", "x "+v2)), policytest.Set(policytest.File("c", "y "+v1))},
			"x@b\ny@c\n" + `a:1:1: service "default/z": 10.96.0.1:80/tcp is taken by "default/y" (c:1:1)`},
		{"a trade in which one wants something twice", []source.Changes{
			policytest.Set(policytest.File("a", "x "+v1), policytest.File("b", "y "+v2)), policytest.Set(policytest.File("a", "x "+v2, "z "+v2)), policytest.Set(policytest.File("b", "y "+v3))},
			"x@a\ny@b\n" + `a:2:1: service "default/z": 10.96.0.2:80/tcp is taken by "default/x" (a:1:1)`},
		{"a ring of three, one of them refused for good", []source.Changes{
			policytest.Set(policytest.File("a", "x "+v1), policytest.File("b", "y "+v2), policytest.File("c", "z "+v3)), policytest.Set(policytest.File("a", "x "+v2)), policytest.Set(policytest.File("b", "y "+v3)), policytest.Set(policytest.File("c", "z "+v1, "w 10349"))},
			"x@a\ny@b\nz@c\n" + `a:1:1: service "default/x": 10.96.0.2:80/tcp is taken by "default/y" (b:1:1)` + "\n" +
				`b:1:1: service "default/y": 10.96.0.3:80/tcp is taken by "default/z" (c:1:1)` + "\n" +
				`c:1:1: service "default/z": 10.96.0.1:80/tcp is taken by "default/x" (a:1:1)` + "\n" +
				`c:2:1: service "default/w": port 10349/tcp is the one svcproxy itself listens on; choose another port, or another http_address, metrics_address or port of [bgp]`},
		{"chain of releases", []source.Changes{
			policytest.Set(policytest.File("a", "x "+v1), policytest.File("b", "y "+v2)), policytest.Set(policytest.File("b", "y "+v1)), policytest.Set(policytest.File("c", "z "+v2)), policytest.Gone("a")}, "y@b\nz@c"},
		{"older record wins at the start", []source.Changes{policytest.Set(since(policytest.File("a", "x "+v1), 2), since(policytest.File("b", "y "+v1), 1))},
			"y@b\n" + `a:1:1: service "default/x": 10.96.0.1:80/tcp is taken by "default/y" (b:1:1)`},
		{"files before Kubernetes", []source.Changes{policytest.Set(policytest.Object("default/x", 1, "x "+v1)), policytest.Set(policytest.File("a", "y "+v1))},
			"x@default/x without 10.96.0.1:80/tcp\ny@a\n" + `service "default/x": 10.96.0.1:80/tcp is taken by "default/y" (a:1:1)`},
		{"and back again", []source.Changes{policytest.Set(policytest.Object("default/x", 1, "x "+v1)), policytest.Set(policytest.File("a", "y "+v1)), policytest.Gone("a")}, "x@default/x"},
		{"the older object", []source.Changes{policytest.Set(policytest.Object("default/x", 2, "x "+v1), policytest.Object("default/y", 1, "y "+v1))},
			"x@default/x without 10.96.0.1:80/tcp\ny@default/y\n" + `service "default/x": 10.96.0.1:80/tcp is taken by "default/y" (default/y)`},
		{"the older object, though it came later", []source.Changes{policytest.Set(policytest.Object("default/x", 2, "x "+v1)), policytest.Set(policytest.Object("default/y", 1, "y "+v1))},
			"x@default/x without 10.96.0.1:80/tcp\ny@default/y\n" + `service "default/x": 10.96.0.1:80/tcp is taken by "default/y" (default/y)`},
		{"of one age, the earlier name", []source.Changes{policytest.Set(policytest.Object("default/y", 1, "y 30080")), policytest.Set(policytest.Object("default/x", 1, "x 30080"))},
			"x@default/x\ny@default/y without node port 30080/tcp\n" + `service "default/y": node port 30080/tcp is taken by "default/x" (default/x)`},
		{"the next oldest after it", []source.Changes{
			policytest.Set(policytest.Object("default/z", 3, "z "+v1), policytest.Object("default/x", 1, "x "+v1), policytest.Object("default/y", 2, "y "+v1)), policytest.GoneObject("default/x")},
			"y@default/y\nz@default/z without 10.96.0.1:80/tcp\n" + `service "default/z": 10.96.0.1:80/tcp is taken by "default/y" (default/y)`},
		{"an object under the name of a file", []source.Changes{policytest.Set(policytest.Object("default/x", 1, "x "+v1)), policytest.Set(policytest.File("a", "x "+v2))},
			"x@a\n" + `service "default/x" is already defined (a:1:1)`},
		{"its addresses are free for others", []source.Changes{
			policytest.Set(policytest.Object("default/x", 1, "x "+v1), policytest.Object("default/y", 2, "y "+v1)), policytest.Set(policytest.File("a", "x "+v2))},
			"x@a\ny@default/y\n" + `service "default/x" is already defined (a:1:1)`},
		{"until it has its name again", []source.Changes{
			policytest.Set(policytest.File("a", "x "+v2)), policytest.Set(policytest.Object("default/y", 2, "y "+v1)), policytest.Set(policytest.Object("default/x", 1, "x "+v1)), policytest.Gone("a")},
			"x@default/x\ny@default/y without 10.96.0.1:80/tcp\n" + `service "default/y": 10.96.0.1:80/tcp is taken by "default/x" (default/x)`},
		{"our own port, of an object", []source.Changes{policytest.Set(policytest.Object("default/x", 1, "x 10349"))},
			"x@default/x without node port 10349/tcp\n" + `service "default/x": port 10349/tcp is the one svcproxy itself listens on; choose another port, or another http_address, metrics_address or port of [bgp]`},
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

func since(u source.Unit, ns int64) source.Unit { u.Since = ns; return u }

// What two sources have an object for is of the earlier source, however old the objects are.
func TestTrackerPrefersTheEarlierSource(t *testing.T) {
	tr := NewTracker(nil, "file", "first", "kubernetes")
	later, earlier := policytest.Object("a", 1, "x 10.96.0.1:80"), policytest.Object("b", 2, "y 10.96.0.1:80")
	earlier.ID.Source = "first"
	tr.Apply(policytest.Set(later))
	tr.Apply(policytest.Set(earlier))
	want := "x@a without 10.96.0.1:80/tcp\ny@b\n" + `service "default/x": 10.96.0.1:80/tcp is taken by "default/y" (b)`
	if got := inUse(tr); got != want {
		t.Errorf("\n got: %s\nwant: %s", got, want)
	}
}

// A move between files is one transition of one service, never a removal.
func TestTrackerMoveHasNoGap(t *testing.T) {
	tr := NewTracker(nil)
	tr.Apply(policytest.Set(policytest.File("a", "x 10.96.0.1:80")))
	tr.Apply(policytest.Set(policytest.File("b", "x 10.96.0.1:81")))
	got := tr.Apply(policytest.Gone("a"))
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
			for _, x := range tr.Apply(policytest.RandomStep(t)) {
				if o := seen[x.Key()]; (o == nil) != (x.Old == nil) || o != nil && !o.Equal(x.Old) {
					t.Fatalf("transition of %s from %v, but it was %v", x.Key(), x.Old, o)
				}
				if x.New == nil {
					delete(seen, x.Key())
				} else {
					seen[x.Key()] = x.New
				}
			}
			checkClaims(t, tr, seen)
		}
	})
}

func checkClaims(t *rapid.T, tr *Tracker, seen map[source.Key]*source.Service) {
	n, services := 0, 0
	frontends := map[Claim]source.Key{}
	tr.Services(func(s *source.Service, id source.UnitID) {
		services++
		if seen[s.Key] == nil || !seen[s.Key].Equal(s) {
			t.Fatalf("%s is in use, but no transition said so", s.Key)
		}
		for c := range Of(s) {
			if slices.Contains(s.Without, source.PortAddr{Protocol: c.Protocol, AddrPort: netip.AddrPortFrom(c.Addr, c.Port)}) {
				continue
			}
			if other, twice := frontends[c]; twice {
				t.Fatalf("%s has two owners, %s and %s", c, other, s.Key)
			}
			frontends[c] = s.Key
			if id.Source == "kubernetes" {
				continue
			}
			n++
			if h := tr.claims[c]; h.svc != s || h.unit.ID != id {
				t.Fatalf("%s of %s belongs to %+v", c, s.Key, h)
			}
		}
	})
	if n != len(tr.claims) || services != len(seen) {
		t.Fatalf("%d claims of files, %d held; %d services, %d seen", n, len(tr.claims), services, len(seen))
	}
}

// What becomes of objects does not depend on the order in which they came and went.
func TestTrackerObjectsInAnyOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		running, now := NewTracker(nil), map[source.UnitID]source.Unit{}
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			ch := policytest.RandomStep(t)
			ch.Set = slices.DeleteFunc(ch.Set, func(u source.Unit) bool { return u.ID.Source == "file" })
			for _, id := range ch.Delete {
				delete(now, id)
			}
			for _, u := range ch.Set {
				now[u.ID] = u
			}
			running.Apply(ch)
		}
		fresh := NewTracker(nil)
		fresh.Apply(source.Changes{Set: slices.Collect(maps.Values(now))})
		if got, want := inUse(running), inUse(fresh); got != want {
			t.Fatalf("\nrunning: %s\n  fresh: %s", got, want)
		}
		sameLen := func(a, b []holder) bool { return len(a) == len(b) }
		if !maps.EqualFunc(running.objects.wants, fresh.objects.wants, sameLen) {
			t.Fatalf("running: %v\nfresh: %v", running.objects.wants, fresh.objects.wants)
		}
	})
}

// What becomes of files follows from what each has and wants, and from nothing
// else: not from the order in which they came to want it, nor from who was refused before.
func TestTrackerFilesFollowFromWhatTheyWant(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		running, wanted := NewTracker(nil), map[source.UnitID]source.Unit{}
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			ch := randomFiles(t)
			before := accepted(running)
			running.Apply(ch)
			for _, id := range ch.Delete {
				delete(wanted, id)
				before = slices.DeleteFunc(before, func(u source.Unit) bool { return u.ID == id })
			}
			for _, u := range ch.Set {
				wanted[u.ID] = u
			}
			all := source.Changes{Set: slices.Collect(maps.Values(wanted))}
			fresh := NewTracker(nil)
			fresh.Apply(source.Changes{Set: before})
			fresh.Apply(all)
			if got, want := holdings(running), holdings(fresh); got != want {
				t.Fatalf("\nrunning: %s\n  fresh: %s", got, want)
			}
			if again := fresh.Apply(all); len(again) > 0 || holdings(fresh) != holdings(running) {
				t.Fatalf("after the same once more: %s, %+v\nbefore: %s", holdings(fresh), again, holdings(running))
			}
			checkNoMoreFit(t, running)
		}
	})
}

// randomFiles is a step of files that want a few claims, so that some trade, some
// wait in a ring, and some are refused for good.
func randomFiles(t *rapid.T) source.Changes {
	var ch source.Changes
	for _, name := range rapid.SliceOfNDistinct(rapid.SampledFrom(strings.Split("abcdef", "")), 1, 3, rapid.ID).Draw(t, "files") {
		if rapid.IntRange(0, 9).Draw(t, "delete") == 0 {
			ch.Delete = append(ch.Delete, source.UnitID{Source: "file", Name: name})
			continue
		}
		var services []string
		for i, vip := range rapid.SliceOfN(rapid.IntRange(1, 7), 1, 2).Draw(t, "addresses") {
			services = append(services, fmt.Sprintf("%s%d 10.96.0.%d:80", name, i, vip))
		}
		ch.Set = append(ch.Set, policytest.File(name, services...))
	}
	return ch
}

// accepted returns the files of which a version is in use, with that.
func accepted(t *Tracker) (out []source.Unit) {
	for _, u := range t.units {
		if u.hasUsed {
			out = append(out, source.Unit{ID: u.ID, Partial: u.Partial, Since: u.Since, Services: u.used})
		}
	}
	return out
}

// holdings lists who has what, and the faults of refused files.
func holdings(t *Tracker) string {
	var out []string
	for c, h := range t.claims {
		out = append(out, fmt.Sprintf("%s of %s: %s", c, h.svc.Key, h.unit.ID.Name))
	}
	slices.Sort(out)
	return strings.Join(out, "\n") + "\n" + inUse(t)
}

// checkNoMoreFit tries all sets of refused files: none can have what it wants, not even at once.
func checkNoMoreFit(t *rapid.T, tr *Tracker) {
	refused := slices.SortedFunc(maps.Values(tr.refused), (*unit).compare)
	for set := 1; set < 1<<len(refused); set++ {
		owners, names := map[Claim]int{}, ""
		for _, u := range tr.units {
			services := u.used
			if i := slices.Index(refused, u); i >= 0 && set>>i&1 == 1 {
				services, names = u.wanted, names+u.ID.Name
			}
			for _, s := range services {
				for c := range Of(s) {
					owners[c]++
				}
			}
		}
		if !slices.ContainsFunc(slices.Collect(maps.Values(owners)), func(n int) bool { return n > 1 }) {
			t.Fatalf("files %q are refused, but can have what they want:\n%s", names, inUse(tr))
		}
	}
}

// The ports that are reserved can change: one that a file has stays with it, and what waited for one gets it.
func TestReservedPortsChange(t *testing.T) {
	ports := func(list ...uint16) (out []netip.AddrPort) {
		for _, n := range list {
			out = append(out, netip.AddrPortFrom(netip.IPv4Unspecified(), n))
		}
		return out
	}
	tr := NewTracker(ports(179))
	expect := func(what, want string) {
		t.Helper()
		tr.Apply(source.Changes{})
		if got := inUse(tr); got != want {
			t.Errorf("%s:\n%s\nwant:\n%s", what, got, want)
		}
	}
	ours := func(unit, name string, port int) string {
		return fmt.Sprintf("%sservice %q: port %d/tcp is the one svcproxy itself listens on; choose another port, or another http_address, metrics_address or port of [bgp]", unit, "default/"+name, port)
	}
	tr.Apply(policytest.Set(policytest.File("a", "x 179"), policytest.File("b", "y 1790")))
	tr.Apply(policytest.Set(policytest.Object("default/z", 1, "z 179")))
	expect("at first", "y@b\nz@default/z without node port 179/tcp\n"+ours("a:1:1: ", "x", 179)+"\n"+ours("", "z", 179))
	tr.Reserve(ports(1790))
	expect("another port", "x@a\ny@b\nz@default/z without node port 179/tcp\n"+`service "default/z": node port 179/tcp is taken by "default/x" (a:1:1)`)
	tr.Apply(policytest.Set(policytest.File("b", "y 1790", "v 10.96.0.1:80")))
	expect("its file is edited", "v@b\nx@a\ny@b\nz@default/z without node port 179/tcp\n"+`service "default/z": node port 179/tcp is taken by "default/x" (a:1:1)`)
	tr.Apply(policytest.Gone("b"))
	tr.Apply(policytest.Gone("a"))
	tr.Apply(policytest.Set(policytest.File("c", "w 1790")))
	expect("when it let go", "z@default/z\n"+ours("c:1:1: ", "w", 1790))
	tr.Reserve(ports(179))
	expect("an object lets go at once", "w@c\nz@default/z without node port 179/tcp\n"+ours("", "z", 179))
	tr.Reserve(nil)
	expect("none", "w@c\nz@default/z")
}
