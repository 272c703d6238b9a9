package claims

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"svcproxy.dev/svcproxy/proxier/policy/policytest"
	"svcproxy.dev/svcproxy/source"
)

// sized returns n services with a frontend each, whose names and addresses no other file has.
func sized(id, n int) (list []string) {
	for i := range n {
		list = append(list, fmt.Sprintf("s%d-%d 10.%d.0.%d:80", id, i, id, i+1))
	}
	return list
}

func limited(frontends uint64) *Tracker {
	tr := NewTracker(nil, "file", "http", "etcd", "kubernetes")
	tr.Limit(source.Products{Frontends: frontends, Endpoints: 1 << 30, SourceRanges: 1 << 30})
	return tr
}

// What was accepted keeps its room, and what had none gets it as soon as there is some: in the step that makes it.
func TestRoomOfFiles(t *testing.T) {
	tr := limited(5)
	step := func(name string, ch source.Changes, want string) {
		t.Helper()
		tr.Apply(ch)
		if got := inUse(tr); got != want {
			t.Errorf("%s:\n got: %s\nwant: %s", name, got, want)
		}
	}
	const fault = `: service "default/%s": with it all services have 6 frontends (addresses times ports), more than 5; use fewer addresses or ports, or raise frontends in [limits] of svcproxy.toml`
	step("at the limit", policytest.Set(policytest.File("a", sized(1, 3)...), policytest.File("b", sized(2, 2)...)), "s1-0@a\ns1-1@a\ns1-2@a\ns2-0@b\ns2-1@b")
	step("one more", policytest.Set(policytest.File("c", sized(3, 1)...)), "s1-0@a\ns1-1@a\ns1-2@a\ns2-0@b\ns2-1@b\nc:1:1"+fmt.Sprintf(fault, "s3-0"))
	step("one that grows", policytest.Set(policytest.File("b", sized(2, 3)...)), "s1-0@a\ns1-1@a\ns1-2@a\ns2-0@b\ns2-1@b\nb:3:1"+fmt.Sprintf(fault, "s2-2")+"\nc:1:1"+fmt.Sprintf(fault, "s3-0"))
	step("one goes", policytest.Gone("a"), "s2-0@b\ns2-1@b\ns2-2@b\ns3-0@c")
	step("growing and shrinking in one step", policytest.Set(policytest.File("b", sized(2, 1)...), policytest.File("c", sized(3, 4)...)), "s2-0@b\ns3-0@c\ns3-1@c\ns3-2@c\ns3-3@c")
	step("the other way round", policytest.Set(policytest.File("b", sized(2, 4)...), policytest.File("c", sized(3, 1)...)), "s2-0@b\ns2-1@b\ns2-2@b\ns2-3@b\ns3-0@c")
}

// Files that exchange claims have room for what they are together.
func TestRoomOfExchange(t *testing.T) {
	tr := limited(3)
	tr.Apply(policytest.Set(policytest.File("a", "x 10.0.0.1:80", "y 10.0.0.2:80"), policytest.File("b", "z 10.0.0.3:80")))
	tr.Apply(policytest.Set(policytest.File("a", "z 10.0.0.3:80"), policytest.File("b", "x 10.0.0.1:80", "y 10.0.0.2:80")))
	if got, want := inUse(tr), "x@b\ny@b\nz@a"; got != want {
		t.Errorf("\n got: %s\nwant: %s", got, want)
	}
}

// A refused file is not looked at any closer: its claims are kept nowhere.
func TestRefusedForRoomTakesNone(t *testing.T) {
	tr := limited(10)
	tr.Apply(policytest.Set(policytest.File("a", sized(1, 6)...)))
	tr.Apply(policytest.Set(policytest.File("b", append(sized(2, 5), sized(1, 6)...)...)))
	if len(tr.waiting) > 0 || len(tr.claims) != 12 {
		t.Errorf("%d claims are waited for, %d are held", len(tr.waiting), len(tr.claims))
	}
	if r := tr.Refusals(); len(r) != 1 || !r[0].NoRoom {
		t.Errorf("refusals: %+v", r)
	}
	tr.Apply(policytest.Gone("a"))
	if r := tr.Refusals(); len(r) != 1 || !r[0].NoRoom { // alone it is too much, too
		t.Errorf("refusals: %+v", r)
	}
}

// An object without room is left out whole, the youngest first, and files go before all.
func TestRoomOfObjects(t *testing.T) {
	tr := limited(5)
	tr.Apply(policytest.Set(policytest.Object("o2", 2, sized(2, 3)...), policytest.Object("o1", 1, sized(1, 2)...), policytest.Object("o3", 3, sized(3, 1)...)))
	if got, want := inUse(tr), `s1-0@o1
s1-1@o1
s2-0@o2
s2-1@o2
s2-2@o2
service "default/s3-0": with it all services have 6 frontends (addresses times ports), more than 5; use fewer addresses or ports, or raise frontends in [limits] of svcproxy.toml`; got != want {
		t.Errorf("\n got: %s\nwant: %s", got, want)
	}
	tr.Apply(policytest.Set(policytest.File("f", sized(4, 2)...)))
	if got, want := len(tr.Refusals()), 1; got != want || tr.Refusals()[0].Unit.Name != "o2" {
		t.Errorf("refusals: %+v", tr.Refusals())
	}
	tr.Apply(policytest.GoneObject("o1"))
	if got, want := inUse(tr), "s2-0@o2\ns2-1@o2\ns2-2@o2\ns4-0@f\ns4-1@f"; got[:len(want)] != want {
		t.Errorf("\n got: %s\nwant: %s", got, want)
	}
	tr.Apply(policytest.Gone("f"))
	if len(tr.Refusals()) > 0 {
		t.Errorf("refusals: %+v", tr.Refusals())
	}
}

// Whatever comes and goes in any order: there is never more than the limit, no file is without room that it could have,
// and what objects have follows from what there is.
func TestRoomInAnyOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		most := uint64(rapid.IntRange(0, 12).Draw(t, "limit"))
		running, now := limited(most), map[source.UnitID]source.Unit{}
		for range rapid.IntRange(1, 20).Draw(t, "steps") {
			var ch source.Changes
			for _, id := range rapid.SliceOfNDistinct(rapid.IntRange(1, 12), 1, 4, rapid.ID[int]).Draw(t, "units") {
				name, n := fmt.Sprint("u", id), rapid.IntRange(-1, 6).Draw(t, "size")
				u := policytest.File(name, sized(id, max(0, n))...)
				if id <= 8 {
					u.ID.Source = []string{"file", "http", "etcd"}[id%3]
				} else {
					u = policytest.Object(name, int64(id), sized(id, max(0, n))...)
				}
				if now[u.ID] = u; n < 0 {
					delete(now, u.ID)
					ch.Delete = append(ch.Delete, u.ID)
					continue
				}
				ch.Set = append(ch.Set, u)
			}
			running.Apply(ch)
			checkRoom(t, running, most)
		}
		files := accepted(running)
		fresh := limited(most)
		fresh.Apply(source.Changes{Set: files})
		fresh.Apply(source.Changes{Set: slices.Collect(maps.Values(now))})
		if got, want := inUse(running), inUse(fresh); got != want {
			t.Fatalf("\nrunning: %s\n  fresh: %s", got, want)
		}
	})
}

func checkRoom(t *rapid.T, tr *Tracker, most uint64) {
	var files, all source.Products
	tr.Services(func(s *source.Service, id source.UnitID) {
		all = all.Plus(s.Products())
		if id.Source != "kubernetes" {
			files = files.Plus(s.Products())
		}
	})
	if all.Frontends > most || files != tr.inFiles {
		t.Fatalf("%+v of all, %+v of files, counted %+v", all, files, tr.inFiles)
	}
	for _, u := range tr.refused {
		beside := source.Products{}
		for _, o := range tr.units {
			if o != u && o.rank <= u.rank {
				beside = beside.Plus(o.usedLoad)
			}
		}
		if u.excess != (beside.Plus(u.load).Frontends > most) {
			t.Fatalf("%s: excess is %v beside %+v", u.ID.Name, u.excess, beside)
		}
	}
}

// aged returns a unit of a source that came at some time.
func aged(u source.Unit, from string, since int64) source.Unit {
	u.ID.Source, u.Since = from, since
	return u
}

// A file of an earlier source has room, whenever it comes: those of later sources leave it, the last one first.
func TestFilesOfEarlierSourceHaveRoom(t *testing.T) {
	u := func(name string, id, n int) source.Unit {
		return aged(policytest.File(name, sized(id, n)...), "http", int64(id))
	}
	u1, u2 := u("u1", 1, 2), u("u2", 2, 2)
	v := aged(policytest.File("v", sized(3, 1)...), "etcd", 1)
	small, large, huge := policytest.File("a", sized(4, 1)...), policytest.File("a", sized(4, 2)...), policytest.File("a", sized(4, 6)...)
	const fault = `: service "default/%s": with it all services have 6 frontends (addresses times ports), more than 5; use fewer addresses or ports, or raise frontends in [limits] of svcproxy.toml`
	lacks := func(file string, line int, service string) string {
		return fmt.Sprintf("%s:%d:1"+fault, file, line, service)
	}
	all := policytest.Set(u1, u2, v)
	for _, tt := range []struct {
		name  string
		steps []source.Changes
		want  string
	}{
		{"the last source loses first", []source.Changes{all, policytest.Set(small)},
			"s1-0@u1\ns1-1@u1\ns2-0@u2\ns2-1@u2\ns4-0@a\n" + lacks("v", 1, "s3-0")},
		{"one that is small stays", []source.Changes{all, policytest.Set(large)},
			"s1-0@u1\ns1-1@u1\ns3-0@v\ns4-0@a\ns4-1@a\n" + lacks("u2", 2, "s2-1")},
		{"it grows", []source.Changes{all, policytest.Set(small), policytest.Set(large)},
			"s1-0@u1\ns1-1@u1\ns3-0@v\ns4-0@a\ns4-1@a\n" + lacks("u2", 2, "s2-1")},
		{"it shrinks", []source.Changes{all, policytest.Set(large), policytest.Set(small)},
			"s1-0@u1\ns1-1@u1\ns2-0@u2\ns2-1@u2\ns4-0@a\n" + lacks("v", 1, "s3-0")},
		{"it goes", []source.Changes{all, policytest.Set(large), policytest.Gone("a")}, "s1-0@u1\ns1-1@u1\ns2-0@u2\ns2-1@u2\ns3-0@v"},
		{"it is too much alone", []source.Changes{all, policytest.Set(huge)},
			"s1-0@u1\ns1-1@u1\ns2-0@u2\ns2-1@u2\ns3-0@v\n" + lacks("a", 6, "s4-5")},
		{"it takes claims, which is enough", []source.Changes{all, policytest.Set(policytest.File("a", "x 10.2.0.1:80", "y 10.9.0.1:80"))},
			"s1-0@u1\ns1-1@u1\ns3-0@v\nx@a\ny@a\n" + lacks("u2", 2, "s2-1")},
		{"all come at once", []source.Changes{policytest.Set(u1, u2, v, large)},
			"s1-0@u1\ns1-1@u1\ns3-0@v\ns4-0@a\ns4-1@a\n" + lacks("u2", 2, "s2-1")},
		{"one that was evicted goes before a younger one that waits", []source.Changes{
			policytest.Set(u("u1", 1, 1), u("u2", 2, 3), u("u3", 3, 1), u("u4", 4, 2)), policytest.Set(policytest.File("a", sized(5, 2)...))},
			"s1-0@u1\ns3-0@u3\ns5-0@a\ns5-1@a\n" + lacks("u2", 2, "s2-1") + "\n" + lacks("u4", 2, "s4-1")},
		{"a text of the middle", []source.Changes{policytest.Set(v, small), policytest.Set(u("u", 5, 4))},
			"s4-0@a\ns5-0@u\ns5-1@u\ns5-2@u\ns5-3@u\n" + lacks("v", 1, "s3-0")},
	} {
		tr := limited(5)
		for _, ch := range tt.steps {
			tr.Apply(ch)
		}
		if got := inUse(tr); got != tt.want {
			t.Errorf("%s:\n got: %s\nwant: %s", tt.name, got, tt.want)
		}
	}
}

// What has room does not depend on the order in which sources give their units, each the oldest first.
func TestRoomOfSourcesInAnyOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		most := uint64(rapid.IntRange(0, 15).Draw(t, "limit"))
		all := map[string][]source.Unit{}
		for i, from := range rapid.SliceOfN(rapid.SampledFrom([]string{"file", "http", "etcd"}), 1, 9).Draw(t, "sources") {
			u := policytest.File(fmt.Sprint("u", i), sized(i+1, rapid.IntRange(0, 5).Draw(t, "size"))...)
			all[from] = append(all[from], aged(u, from, int64(i+1)))
		}
		running, fresh := limited(most), limited(most)
		fresh.Apply(source.Changes{Set: slices.Concat(slices.Collect(maps.Values(all))...)})
		for len(all) > 0 {
			from := rapid.SampledFrom(slices.Sorted(maps.Keys(all))).Draw(t, "source")
			n := rapid.IntRange(1, len(all[from])).Draw(t, "units")
			running.Apply(source.Changes{Set: all[from][:n]})
			checkRoom(t, running, most)
			if all[from] = all[from][n:]; len(all[from]) == 0 {
				delete(all, from)
			}
		}
		if got, want := inUse(running), inUse(fresh); got != want {
			t.Fatalf("\nrunning: %s\n  fresh: %s", got, want)
		}
	})
}

// What is in use of a refused file of an earlier source has room for the endpoints that lists say by now.
func TestEndpointsOfEarlierSourceHaveRoom(t *testing.T) {
	file := func(service, version string, endpoints ...string) source.Unit {
		u := policytest.File("b", service)
		u.Version = version
		policytest.Endpoints(endpoints...)(u.Services[0])
		return u
	}
	text := aged(policytest.File("u", "z 10.96.0.3:80"), "http", 1)
	policytest.Endpoints("10.1.0.1", "10.1.0.2")(text.Services[0])
	tr := NewTracker(nil, "file", "http")
	tr.Limit(source.Products{Frontends: 9, Endpoints: 3, SourceRanges: 9})
	tr.Apply(policytest.Set(policytest.File("a", "x 10.96.0.1:80"), file("y 10.96.0.2:80", "1", "10.1.0.1")))
	tr.Apply(policytest.Set(text))
	refused, more := file("y 10.96.0.1:80", "2"), file("y 10.96.0.2:80", "1", "10.1.0.1", "10.1.0.2")
	refused.InUse = &more
	tr.Apply(policytest.Set(refused))
	y, z := tr.InUse(more.Services[0].Key), tr.InUse(text.Services[0].Key)
	if len(y.Endpoints) != 2 || z != nil || len(tr.Refusals()) != 2 {
		t.Errorf("%d endpoints beside %v, refused: %+v", len(y.Endpoints), z, tr.Refusals())
	}
}
