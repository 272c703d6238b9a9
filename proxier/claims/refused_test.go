package claims

import (
	"fmt"
	"testing"

	"svcproxy.dev/svcproxy/proxier/policy/policytest"
)

// many returns n services, each with an address of its own.
func many(name string, n int) (list []string) {
	for i := range n {
		list = append(list, fmt.Sprintf("%s%d 10.%d.%d.%d:80", name, i, 100+i>>16, i>>8&255, i&255))
	}
	return list
}

// A refused file costs changes of other files nothing, however large it is and
// however much of it is taken.
func TestRefusedFileCostsOthersNothing(t *testing.T) {
	const n = 5000
	tests := []struct {
		name          string
		first, second []string
	}{
		{"one clash", many("x", 1), many("x", n)},
		{"nothing but clashes", many("x", n), many("y", n)},
		{"twice within the file", nil, append(many("x", n), many("y", 1)...)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tr := NewTracker(nil)
			tr.Apply(policytest.Set(policytest.File("a", tt.first...)))
			tr.Apply(policytest.Set(policytest.File("c", "c 10.96.0.1:80")))
			change := func() {
				tr.Apply(policytest.Set(policytest.File("c", "c 10.96.0.2:80")))
				tr.Apply(policytest.Set(policytest.File("c", "c 10.96.0.1:80")))
			}
			before := testing.AllocsPerRun(5, change)
			tr.Apply(policytest.Set(policytest.File("b", tt.second...)))
			if len(tr.Refusals()) != 1 {
				t.Fatal("nothing is refused")
			}
			if after := testing.AllocsPerRun(5, change); after > before+10 {
				t.Errorf("a change of another file takes %v allocations, without the refused one %v", after, before)
			}
		})
	}
}

// Why a file is refused is told of the first claims, in order, and that there are more.
func TestRefusalHasAnEnd(t *testing.T) {
	for n, want := range map[int]int{maxTaken - 1: maxTaken - 1, maxTaken: maxTaken, maxTaken + 1: maxTaken + 1, 5000: maxTaken + 1} {
		tr := NewTracker(nil)
		tr.Apply(policytest.Set(policytest.File("a", many("x", n)...)))
		tr.Apply(policytest.Set(policytest.File("b", many("y", n)...)))
		faults := tr.Refusals()[0].Faults
		if len(faults) != want {
			t.Errorf("%d claims are taken: %d faults, want %d", n, len(faults), want)
		}
		last := faults[len(faults)-1].String()
		if more := fmt.Sprintf("b:%d:1: more of what this file claims is taken; the first %d are shown", maxTaken+1, maxTaken); (last == more) != (n > maxTaken) {
			t.Errorf("%d claims are taken: the last fault is %q", n, last)
		}
	}
}

func BenchmarkChangeBesideRefused(b *testing.B) {
	for _, n := range []int{10000, 100000} {
		for name, first := range map[string][]string{"one clash": many("x", 1), "all clash": many("x", n)} {
			b.Run(fmt.Sprintf("%d services, %s", n, name), func(b *testing.B) {
				tr := NewTracker(nil)
				tr.Apply(policytest.Set(policytest.File("a", first...)))
				tr.Apply(policytest.Set(policytest.File("b", many("y", n)...)))
				for i := 0; b.Loop(); i++ {
					tr.Apply(policytest.Set(policytest.File("c", fmt.Sprintf("c 10.96.0.%d:80", i%2))))
				}
			})
		}
	}
}
