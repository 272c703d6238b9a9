package report

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"svcproxy.dev/svcproxy/proxier/claims"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/policy/policytest"
	"svcproxy.dev/svcproxy/source"
)

// namedWorld has services that the kernel holds as they were resolved, by name.
func namedWorld(list map[string]policy.Conditions, edits map[string][]func(*source.Service)) *Snapshot {
	s := &Snapshot{Snapshot: claims.Snapshot{Node: policytest.Node()}, Syncs: []Family{{Family: policy.IPv4, Known: true}}}
	for name, known := range list {
		svc := policytest.Service(edits[name]...)
		svc.Name = name
		s.Services = append(s.Services, claims.UnitService{Subject: policy.Subject{Service: svc, Conditions: known}})
		if r := policy.Resolve(svc, known, s.Node, policy.IPv4); r != nil {
			s.Syncs[0].Resolved = append(s.Syncs[0].Resolved, r)
		}
	}
	return s
}

// A count names services that do not serve, the worst first, and as many others as are asked for.
func TestNamed(t *testing.T) {
	two := policytest.Endpoints("192.0.2.1", "192.0.2.2")
	failing := policytest.Conditions("192.0.2.1 failed", "192.0.2.2 failed")
	world := namedWorld(map[string]policy.Conditions{
		"a": nil, "b": nil, "c": failing, "d": failing, "e": nil, "f": nil, "g": failing,
	}, map[string][]func(*source.Service){
		"a": {two}, "b": {policytest.Endpoints()}, "c": {two, policytest.Probed}, "d": {two, policytest.ProbedRefuse},
		"e": {policytest.Endpoints(), policytest.InternalLocal}, "f": {two, policytest.TurnedOff}, "g": {two, policytest.Probed, policytest.TurnedOff},
	})
	for _, tt := range []struct {
		most     int
		services string
		left     int
		problems string
		more     map[string]int
	}{
		{0, "[]", 7, "[]", map[string]int{"all failed": 2, "reject": 2}},
		{1, "[a ready:2]", 6, "[c all failed]", map[string]int{"all failed": 1, "reject": 2}},
		{3, "[a ready:2 b c down:2]", 4, "[c all failed d all failed b reject]", map[string]int{"reject": 1}},
		{10, "[a ready:2 b c down:2 d down:2 e f disabled:2 g disabled:2]", 0, "[c all failed d all failed b reject e reject]", nil},
	} {
		got := CountsOf(world, tt.most, Named{}).Named
		var services, problems []string
		slices.SortFunc(got.Services, func(a, b ServiceCounts) int { return a.Key.Compare(b.Key) })
		for _, s := range got.Services {
			services = append(services, s.Name)
			for state, n := range s.Endpoints {
				if n > 0 {
					services = append(services, fmt.Sprintf("%s:%d", policy.EndpointState(state), n))
				}
			}
		}
		for _, p := range got.Problems {
			problems = append(problems, p.Name, p.Problem)
		}
		if fmt.Sprint(services) != tt.services || got.LeftOut != tt.left {
			t.Errorf("%d: services %v and %d more, want %s and %d", tt.most, services, got.LeftOut, tt.services, tt.left)
		}
		if fmt.Sprint(problems) != tt.problems || !maps.Equal(got.More, tt.more) {
			t.Errorf("%d: problems %v and %v, want %s and %v", tt.most, problems, got.More, tt.problems, tt.more)
		}
	}
}

// Whatever is guessed, those are named that sorting all would find first.
func TestLastOfFirst(t *testing.T) {
	for n := range 40 {
		var list []usedService
		for i := range n {
			list = append(list, usedService{Subject: policy.Subject{Service: &source.Service{Key: source.Key{Namespace: "ns", Name: fmt.Sprintf("%02d", i)}}}})
		}
		rand.Shuffle(n, func(i, j int) { list[i], list[j] = list[j], list[i] })
		for most := 1; most < 45 && n > 0; most++ {
			for _, guess := range []string{"", "00", "005", "07", "155", "20", "99"} {
				last, count := lastOfFirst(list, most, source.Key{Namespace: "ns", Name: guess}), 0
				for i := range list {
					if list[i].Key.Compare(last) <= 0 {
						count++
					}
				}
				if count != min(most, n) {
					t.Fatalf("guessing %q: %d of %d are named, want %d", guess, count, n, most)
				}
			}
		}
	}
}

// Each action that is no problem is one on purpose.
func TestProblemOf(t *testing.T) {
	var found []string
	for _, action := range ServiceActions() {
		if p := problemOf(action, ""); p != "" {
			found = append(found, p)
		}
		if got := problemOf(action, policy.UseAll); got != allFailed && got != unservedWhole {
			t.Errorf("%s where all fail: %q", action, got)
		}
	}
	want := slices.DeleteFunc(ServiceProblems(), func(p string) bool { return p == allFailed })
	if slices.Sort(found); !slices.Equal(found, slices.Sorted(slices.Values(want))) {
		t.Errorf("actions that are problems: %q, want %q", found, want)
	}
}
