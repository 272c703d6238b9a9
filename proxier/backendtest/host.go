// Package backendtest holds the tests that every backend must pass. A backend's
// tests describe a Host and call Run.
package backendtest

import (
	"fmt"
	"io"
	"math/rand/v2"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netns"

	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// A Backend can be closed, as a daemon does at its end.
type Backend interface {
	proxier.Backend
	io.Closer
}

// A Host is a network namespace of its own with foreign objects in it, one
// family of a backend, and the State that it is to hold.
type Host[B Backend] struct {
	testing.TB
	Family  policy.Family
	World   *World
	Backend B

	Open    func() (B, error)  // as a start of the daemon does
	Dump    func() string      // all that the kernel holds, foreign objects too, without counters, in a stable order
	Fixed   []*policy.Resolved // services that damages count on
	Damages []Damage
	Foreign func() // adds a foreign object, which concerns nobody

	// Objects lists what is ours in the kernel, without what Plan does not name: what an
	// object holds by its name. Named returns the name of one that Plan names, and what it
	// then holds, unless Plan does not say. Of two objects with names that begin alike, up
	// to a space, the longer is part of the other. Compare is the backend's.
	Objects func() map[string]string
	Named   func(planned string) (name, holds string)
	Compare func(before, after *policy.State) ([]proxier.Change, error)

	Transitions int  // to make of plans; 0: 15
	Slow        bool // what is done takes seconds: fewer of many alike
}

// A Damage is what other programs do to our objects.
type Damage struct {
	Name string
	Do   func() // brings back the foreign objects that went with ours
}

// Start opens the backend. It is closed at the end of the test.
func (h *Host[B]) Start() {
	h.Helper()
	b, err := h.Open()
	h.Must(err)
	h.Cleanup(func() { b.Close() })
	h.Backend = b
}

// Restart forgets all that the backend knows.
func (h *Host[B]) Restart() {
	h.Helper()
	h.Must(h.Backend.Close())
	h.Start()
}

// Must fails the test on an error.
func (h *Host[B]) Must(err error) {
	h.Helper()
	if err != nil {
		h.Fatal(err)
	}
}

// Sync must succeed.
func (h *Host[B]) Sync(delta *policy.Delta) {
	h.Helper()
	h.Must(h.Backend.Sync(h.Context(), h.World.State, delta))
}

// Put changes a service, as a delta.
func (h *Host[B]) Put(res *policy.Resolved) {
	h.Helper()
	h.Sync(h.World.Put(res.Key, res))
}

// Remove removes a service, as a delta.
func (h *Host[B]) Remove(res *policy.Resolved) {
	h.Helper()
	h.Sync(h.World.Put(res.Key, nil))
}

// Repair syncs until all that looks have found is repaired, which takes a backend
// that says what is due more than one.
func (h *Host[B]) Repair(delta *policy.Delta) {
	h.Helper()
	later, _ := any(h.Backend).(interface{ NextDue() time.Time })
	for range 10 {
		h.Sync(delta)
		delta = &policy.Delta{}
		if later == nil || later.NextDue().IsZero() || later.NextDue().After(time.Now()) {
			return
		}
	}
	h.Fatal("repairs never end")
}

// Look reports what a look says.
func (h *Host[B]) Look() bool {
	h.Helper()
	differs, err := h.Backend.Look(h.Context())
	h.Must(err)
	return differs
}

// Planned returns what a full Sync would change.
func (h *Host[B]) Planned() []proxier.Change {
	h.Helper()
	changes, err := h.Backend.Plan(h.Context(), h.World.State)
	h.Must(err)
	return changes
}

// Settled fails the test if the kernel does not hold the State exactly.
func (h *Host[B]) Settled(after string) {
	h.Helper()
	if changes := h.Planned(); len(changes) > 0 {
		h.Fatalf("%s: %d still to change: %v", after, len(changes), changes[:min(20, len(changes))])
	}
}

// Fill puts services of all kinds into the State.
func (h *Host[B]) Fill(pick Pick, n int) {
	for i := range n {
		h.World.Put(Key(i), h.World.Random(pick, i))
	}
}

// Change changes one of n services at random: every fourth time it goes.
func (h *Host[B]) Change(pick Pick, n int) *policy.Delta {
	number := pick(n)
	var res *policy.Resolved
	if pick(4) > 0 {
		res = h.World.Random(pick, number)
	}
	return h.World.Put(Key(number), res)
}

// Key names a service of Fill.
func Key(number int) source.Key {
	return source.Key{Namespace: "default", Name: fmt.Sprintf("svc-%d", number)}
}

// Seeded returns numbers that look random and are the same in every run.
func Seeded(seed uint64) Pick { return rand.New(rand.NewPCG(seed, 0)).IntN }

// Short makes a pick that gives services a few targets, whose listing is short.
func Short(pick Pick) Pick {
	return func(n int) int {
		if n == 7 { // numbers of targets, the larger the later
			return pick(5)
		}
		return pick(n)
	}
}

// Command runs a program, which must succeed, and returns what it prints.
func Command(t testing.TB, name string, args ...string) string {
	t.Helper()
	return CommandInput(t, "", name, args...)
}

// CommandInput is Command for a program that reads.
func CommandInput(t testing.TB, input, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s\n%s", name, args, err, input, out)
	}
	return string(out)
}

// Saved returns all ipsets, and the rules that a program such as iptables-save prints.
func Saved(t testing.TB, program string) string {
	t.Helper()
	sets := strings.Split(Command(t, "ipset", "save"), "\n")
	slices.Sort(sets)
	return WithoutCounters(Command(t, program) + strings.Join(sets, "\n"))
}

// WithoutCounters returns what iptables-save and ipset print, without counters, comments
// and what the kernel chooses by itself.
func WithoutCounters(saved string) string { return volatile.ReplaceAllString(saved, "") }

var volatile = regexp.MustCompile(`(?m)^#.*\n| \[\d+:\d+\]|(?: (?:bucketsize|hashsize|initval) \w+)`)

// In runs do in another network namespace. What it starts stays in this one.
func (h *Host[B]) In(ns string, do func()) {
	h.Helper()
	here, err := netns.Get()
	h.Must(err)
	defer here.Close()
	there, err := netns.GetFromName(ns)
	h.Must(err)
	defer there.Close()
	h.Must(netns.Set(there))
	defer func() { h.Must(netns.Set(here)) }()
	do()
}
