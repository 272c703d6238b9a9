package backendtest

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// transitions returns how many changes to make: SVCPROXY_TRANSITIONS, or a few.
func (h *Host[B]) transitions() int {
	if n, err := strconv.Atoi(os.Getenv("SVCPROXY_TRANSITIONS")); err == nil {
		return n
	}
	return cmp.Or(h.Transitions, 15)
}

// Plan names exactly the objects that the following Sync adds, changes and removes, as the
// kernel's own tools list them before and after; with a delta, without, and as the first
// one of a process. What is planned of two States without a kernel is the same.
func transitions[B Backend](h *Host[B]) {
	pick := Short(Seeded(10))
	first := h.World.Host
	h.Fill(pick, 8)
	before, listed := NewWorld(h.Family).State, h.Objects()
	for step := range h.transitions() {
		was, what, delta := h.clone(), "first sync", (*policy.Delta)(nil)
		if step > 0 {
			before = was
			what, delta = h.transition(pick, first)
		}
		if step%4 == 1 {
			h.interruptedPlan(pick)
		}
		planned := h.Planned()
		if step > 0 {
			offline, err := h.Compare(before, h.World.State)
			h.Must(err)
			h.samePlan(fmt.Sprintf("step %d, %s: of two States", step, what), planned, offline)
		}
		h.Sync(delta)
		now := h.Objects()
		if diff := gocmp.Diff(changed(listed, now), h.named(planned, now)); diff != "" {
			h.Fatalf("step %d, %s (-changed +planned):\n%s", step, what, diff)
		}
		listed = now
	}
}

// interruptedPlan gives up a plan, somewhere. What follows is as if it had never begun.
func (h *Host[B]) interruptedPlan(pick Pick) {
	ctx, cancel := context.WithTimeout(h.Context(), time.Duration(pick(10))*time.Millisecond)
	defer cancel()
	_, _ = h.Backend.Plan(ctx, h.World.State) // it may have been fast enough
}

// clone returns the State as it is now.
func (h *Host[B]) clone() *policy.State {
	w := NewWorld(h.Family)
	w.Host = h.World.Host
	w.PutAll(h.World.Services)
	return w.State
}

// transition changes the State at random, and returns how, and the delta to sync with.
func (h *Host[B]) transition(pick Pick, host policy.Host) (what string, delta *policy.Delta) {
	if pick(8) == 0 {
		h.World.Host = host
		switch pick(4) {
		case 0:
			h.World.Host.MarkBit = 15
		case 1:
			h.World.Host.NodePortAddrs = nil
		case 2:
			h.World.Host.LocalCIDRs, h.World.Host.LocalInterfaces = nil, nil
		}
		return "node", nil
	}
	services := make(map[source.Key]*policy.Resolved)
	for range 1 + pick(3) {
		number := pick(10)
		services[Key(number)] = nil
		if pick(4) > 0 {
			services[Key(number)] = h.World.Random(pick, number)
			delta = merged(delta, h.World.PutAll(services))
			clear(services) // or two of them might want the same
		}
	}
	delta = merged(delta, h.World.PutAll(services))
	switch pick(4) {
	case 0:
		h.Restart()
		return "services, after a restart", nil
	case 1:
		return "services, compared", nil
	}
	return "services, as a delta", delta
}

// merged returns one delta instead of two that follow each other.
func merged(a, b *policy.Delta) *policy.Delta {
	if a == nil {
		return b
	}
	for _, ch := range b.Services {
		i := slices.IndexFunc(a.Services, func(c policy.ServiceChange) bool { return keyOf(c) == keyOf(ch) })
		switch {
		case i < 0:
			a.Services = append(a.Services, ch)
		case a.Services[i].Old == nil && ch.New == nil:
			a.Services = slices.Delete(a.Services, i, i+1)
		default:
			a.Services[i].New = ch.New
		}
	}
	a.RefusedAddrs = mergedSets(a.RefusedAddrs, b.RefusedAddrs)
	a.Hairpins = mergedSets(a.Hairpins, b.Hairpins)
	a.BoundAddrs = mergedSets(a.BoundAddrs, b.BoundAddrs)
	return a
}

func keyOf(ch policy.ServiceChange) source.Key { return cmp.Or(ch.New, ch.Old).Key }

func mergedSets[T comparable](a, b policy.SetDelta[T]) policy.SetDelta[T] {
	net := map[T]int{}
	for _, d := range []policy.SetDelta[T]{a, b} {
		for _, v := range d.Gained {
			net[v]++
		}
		for _, v := range d.Lost {
			net[v]--
		}
	}
	var out policy.SetDelta[T]
	for v, n := range net {
		switch n {
		case 1:
			out.Gained = append(out.Gained, v)
		case -1:
			out.Lost = append(out.Lost, v)
		}
	}
	return out
}

// changed returns what leads from one listing to another: each object with what was done
// to it. What is in an object that was removed goes with it.
func changed(before, after map[string]string) map[string]string {
	ops := map[string]string{}
	for object, value := range after {
		if was, existed := before[object]; !existed {
			ops[object] = "add " + value
		} else if was != value {
			ops[object] = "change " + value
		}
	}
	for object := range before {
		if _, exists := after[object]; !exists && !goesWith(object, before, after) {
			ops[object] = "remove"
		}
	}
	return ops
}

// goesWith reports whether an object is part of another one that was removed: its name
// begins with that of the other.
func goesWith(object string, before, after map[string]string) bool {
	for i := strings.LastIndexByte(object, ' '); i > 0; i = strings.LastIndexByte(object[:i], ' ') {
		_, existed := before[object[:i]]
		if _, exists := after[object[:i]]; existed && !exists {
			return true
		}
	}
	return false
}

// named returns planned changes as changed does.
func (h *Host[B]) named(planned []proxier.Change, now map[string]string) map[string]string {
	ops := map[string]string{}
	for _, c := range planned {
		object, value := h.Named(c.Object)
		if ops[object] != "" {
			h.Errorf("%s is planned twice", object)
		}
		switch {
		case c.Op == "remove":
			ops[object] = c.Op
		case value == "": // the plan does not say
			ops[object] = c.Op + " " + now[object]
		default:
			ops[object] = c.Op + " " + value
		}
	}
	return ops
}

// samePlan fails the test unless two plans are of the same changes.
func (h *Host[B]) samePlan(when string, want, got []proxier.Change) {
	h.Helper()
	lines := func(list []proxier.Change) (out []string) {
		for _, c := range list {
			out = append(out, c.Op+" "+c.Object)
		}
		slices.Sort(out)
		return out
	}
	if diff := gocmp.Diff(lines(want), lines(got)); diff != "" {
		h.Fatalf("%s (-of the kernel +without):\n%s", when, diff)
	}
}
