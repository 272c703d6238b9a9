package claims

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/proxier/policy/policytest"
	"svcproxy.dev/svcproxy/source"
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

// What is in use of a refused file takes other endpoints, and the file waits on; of another version, or where the file is
// refused no more, they are too late.
func TestRefusedFileTakesEndpoints(t *testing.T) {
	const v1, v2 = "10.96.0.1:80", "10.96.0.2:80"
	with := func(u source.Unit, version, endpoint string) source.Unit {
		u.Version = version
		policytest.Endpoints(endpoint)(u.Services[0])
		return u
	}
	for _, tt := range []struct {
		name      string
		version   string // of what is in use, as its source has it
		endpoints uint64 // the limit of them
		free      bool   // what the file claims was released
		want      string
	}{
		{"in use", "1", 9, false, "10.1.0.2"},
		{"another version", "0", 9, false, "10.1.0.1"},
		{"no room", "1", 1, false, "10.1.0.1"},
		{"accepted meanwhile", "1", 9, true, "10.1.0.3"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			first := with(policytest.File("b", "y "+v2), "1", "10.1.0.1")
			newer := with(policytest.File("b", "y "+v2), "1", "10.1.0.2")
			refused := with(policytest.File("b", "y "+v1), "2", "10.1.0.3")
			tr := NewTracker(nil)
			tr.Limit(source.Products{Frontends: 9, Endpoints: tt.endpoints, SourceRanges: 9})
			tr.Apply(policytest.Set(policytest.File("a", "x "+v1), first))
			tr.Apply(policytest.Set(refused))
			if tt.free {
				tr.Apply(policytest.Gone("a"))
			}
			since := tr.Refusals()
			again := refused
			is := newer
			is.Version = tt.version
			if again.InUse = &is; tt.name == "no room" {
				policytest.Endpoints("10.1.0.2", "10.1.0.4")(is.Services[0])
			}
			transitions := tr.Apply(policytest.Set(again))
			y := tr.InUse(first.Services[0].Key)
			if got := y.Endpoints[0].Addr.String(); got != tt.want || len(transitions) != map[bool]int{true: 1}[tt.name == "in use"] {
				t.Errorf("endpoint %s, %d transitions", got, len(transitions))
			}
			now := tr.Refusals()
			if tt.name == "no room" {
				last := len(now[0].Faults) - 1
				if msg := now[0].Faults[last].String(); !strings.Contains(msg, "with what lists say by now all services have 3 endpoints") {
					t.Errorf("said %s", msg)
				}
				now[0].Faults = now[0].Faults[:last]
			}
			if !reflect.DeepEqual(now, since) {
				t.Errorf("refused %+v, before that %+v", now, since)
			}
			tr.Apply(policytest.Gone("a"))
			if y := tr.InUse(first.Services[0].Key); y.VIPs[0].String() != "10.96.0.1" {
				t.Errorf("released, and %v is in use", y.VIPs)
			}
		})
	}
}

// Of refused files that take other endpoints in one step, one has room that another leaves. One without waits for some.
func TestRefusedFilesTakeRoom(t *testing.T) {
	file := func(name, service, version string, endpoints ...string) source.Unit {
		u := policytest.File(name, service)
		u.Version = version
		policytest.Endpoints(endpoints...)(u.Services[0])
		return u
	}
	for _, later := range []bool{false, true} {
		tr := NewTracker(nil)
		tr.Limit(source.Products{Frontends: 9, Endpoints: 5, SourceRanges: 9})
		tr.Apply(policytest.Set(policytest.File("a", "x 10.96.0.1:80"), file("d", "d 10.96.0.4:80", "1", "10.1.0.1"),
			file("b", "y 10.96.0.2:80", "1", "10.1.0.1"), file("c", "z 10.96.0.3:80", "1", "10.1.0.1", "10.1.0.2", "10.1.0.3")))
		b, c := file("b", "y 10.96.0.1:80", "2", "10.1.0.1"), file("c", "z 10.96.0.1:80", "2", "10.1.0.1")
		tr.Apply(policytest.Set(b, c))
		more, fewer := file("b", "y 10.96.0.2:80", "1", "10.1.0.1", "10.1.0.2", "10.1.0.3"), file("c", "z 10.96.0.3:80", "1", "10.1.0.1")
		b, c = file("b", "y 10.96.0.1:80", "2", "10.1.0.1"), file("c", "z 10.96.0.1:80", "2", "10.1.0.1")
		if b.InUse = &more; later {
			tr.Apply(policytest.Set(b))
			tr.Apply(policytest.Set(file("d", "d 10.96.0.4:80", "2")))
			tr.Apply(policytest.Gone("d"))
		}
		if c.InUse = &fewer; later {
			tr.Apply(policytest.Set(c))
		} else {
			tr.Apply(policytest.Set(b, c))
		}
		if n := len(tr.InUse(more.Services[0].Key).Endpoints); n != 3 {
			t.Errorf("%d endpoints, later %v", n, later)
		}
	}
}
