package file

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"svcproxy.dev/svcproxy/proxier/claims"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/keep"
	"svcproxy.dev/svcproxy/source/read"
)

// A tracked sink decides on claims as the daemon does, and tells the source
// what it accepted.
type tracked struct {
	src     *Source
	mu      sync.Mutex
	tracker *claims.Tracker
	uses    map[source.Key]int // endpoints of the services in use
	steps   []string           // what they were after each Apply
	late    bool               // tells only when told to, as a Loop that is busy
	untold  [][]source.Unit
}

func newTracked(src *Source) *tracked {
	return &tracked{src: src, tracker: claims.NewTracker(nil), uses: map[source.Key]int{}}
}

// Apply implements source.Sink.
func (k *tracked) Apply(ch source.Changes) {
	units := k.apply(ch)
	k.mu.Lock()
	late := k.late
	if late {
		k.untold = append(k.untold, units)
	}
	k.mu.Unlock()
	if !late {
		k.src.Accepted(units)
	}
}

// tell tells what was accepted so far, and from then on at once.
func (k *tracked) tell() {
	k.mu.Lock()
	untold := k.untold
	k.late, k.untold = false, nil
	k.mu.Unlock()
	for _, units := range untold {
		k.src.Accepted(units)
	}
}

// tellFirst tells what was accepted first of what was not told yet.
func (k *tracked) tellFirst() {
	k.mu.Lock()
	first := k.untold[0]
	k.untold = k.untold[1:]
	k.mu.Unlock()
	k.src.Accepted(first)
}

// beLate has it tell only when told to.
func (k *tracked) beLate() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.late = true
}

// apply returns what it accepted.
func (k *tracked) apply(ch source.Changes) []source.Unit {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, tr := range k.tracker.Apply(ch) {
		if tr.New == nil || tr.New.Disabled {
			delete(k.uses, cmp.Or(tr.New, tr.Old).Key)
			continue
		}
		k.uses[tr.New.Key] = 0
		for _, e := range tr.New.Endpoints {
			if !e.Disabled {
				k.uses[tr.New.Key]++
			}
		}
	}
	k.steps = append(k.steps, k.inUse())
	return k.tracker.Accepted()
}

// Synced implements source.Sink.
func (k *tracked) Synced(string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.steps = append(k.steps, "synced")
}

func (k *tracked) inUse() string {
	var b []string
	for _, key := range slices.SortedFunc(maps.Keys(k.uses), source.Key.Compare) {
		b = append(b, fmt.Sprintf("%s %d", key.Name, k.uses[key]))
	}
	return strings.Join(b, ", ")
}

// look returns the services in use, and what they were on the way there.
func (k *tracked) look() (now string, steps []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.inUse(), slices.Clone(k.steps)
}

// A host has service files and a state directory. Each start is a new Source.
type host struct {
	*fixture
	state  string
	sink   *tracked
	parsed atomic.Int32                           // files, and copies
	before func(ctx context.Context, text string) // see held; nil: nothing
	limits read.Limits
	check  func(*source.Service) []source.Problem
	real   bool // files are read as they are, not line by line
	guard  Guard
	keep   int

	guardPrograms bool
	owners        func() []read.Owner
}

func newHost(t *testing.T) *host {
	return &host{fixture: &fixture{T: t, dir: t.TempDir()}, state: t.TempDir()}
}

// inBubble runs a test with a host in a synctest bubble, in which the test starts and stops it.
func inBubble(t *testing.T, test func(h *host)) {
	h := newHost(t)
	synctest.Test(t, func(t *testing.T) {
		h.T, h.fixture.T = t, t
		test(h)
	})
}

func (h *host) start() {
	h.src = New(Options{Dir: h.dir, StateDir: h.state, Poll: time.Hour, Log: slog.New(slog.NewTextHandler(&h.log, nil)), Guard: h.guard, Keep: h.keep, Rules: read.Rules{Limits: h.limits, Check: h.check, GuardPrograms: h.guardPrograms, Owners: h.owners}})
	h.src.parse = func(rules read.Rules, ctx context.Context, path string, data []byte, before read.KnownServices) ([]*source.Service, []source.Fault, read.KnownServices) {
		h.parsed.Add(1)
		if h.before != nil {
			return held(h.before)(rules, ctx, path, data, before)
		}
		return parseLines(rules, ctx, path, data, before)
	}
	h.src.parseCopy = h.src.parse
	if h.real {
		h.src.parse, h.src.parseCopy = read.Rules.ParseNew, read.Rules.ParseCopy
	}
	h.src.watchErr = "blind"
	h.sink = newTracked(h.src)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); h.src.run(ctx, h.sink) }()
	h.stop = func() { cancel(); <-done }
}

// warnings returns what Status warns of, but that there are no events.
func (h *host) warnings() []string {
	return slices.DeleteFunc(h.src.Status().Warnings, func(w string) bool { return strings.HasSuffix(w, "blind") })
}

// moment lets a change count, and what is to be written be written.
func moment() { pass(2 * time.Second) }

func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (h *host) copies() []string {
	entries, err := os.ReadDir(h.state + "/lastgood")
	check(h.T, err)
	var names []string
	for _, e := range entries {
		if !slices.Contains([]string{"index", "directory", "decisions", "running"}, e.Name()) {
			names = append(names, e.Name())
		}
	}
	return names
}

// damage changes the copy of a file.
func (h *host) damage(name string) { write(h.T, h.lastCopy(name), "a 7\n") }

// lastCopy returns the path of the copy of a file's last good version.
func (h *host) lastCopy(name string) string {
	h.Helper()
	r, ok := h.src.store.Find(name)
	if !ok {
		h.Fatalf("no record of %s", name)
	}
	return h.src.store.CopyPath(name, r.Sum)
}

// copyOf returns the path of the copy of a version of a file.
func (h *host) copyOf(name, text string) string {
	return keep.New(h.state, slog.New(slog.DiscardHandler)).CopyPath(name, read.IDOf([]byte(text), nil))
}

// record has a version of a file recorded as the last good one, while no Source runs.
func (h *host) record(name, text string) {
	h.Helper()
	st := keep.New(h.state, slog.New(slog.DiscardHandler))
	st.Load()
	v := &read.Version{ID: read.IDOf([]byte(text), nil), Data: []byte(text), Size: len(text)}
	st.Put(map[string]keep.Entry{name: {Record: keep.Record{Sum: v.ID, Since: time.Now(), At: time.Now()}, Version: v}})
	ctx, cancel := context.WithCancel(context.Background())
	var ended sync.WaitGroup
	ended.Go(func() { st.Run(ctx) })
	check(h.T, st.Flush(ctx))
	cancel()
	ended.Wait()
}

// stall has the goroutine of the store wait, as for a slow disk, until release is called: for what a.toml has, whose
// copy it misses.
func (h *host) stall() (release func()) {
	h.Helper()
	path := h.lastCopy("a.toml")
	waits, gate := make(chan bool), make(chan bool)
	check(h.T, os.Rename(path, path+".away"))
	h.src.store.Tidy(func(string) ([]byte, bool) {
		close(waits)
		<-gate
		return nil, false
	})
	<-waits
	check(h.T, os.Rename(path+".away", path))
	return func() { close(gate) }
}

// faults returns all faults of all files.
func (h *host) faults() string {
	var b []string
	for _, f := range h.src.Status().Files {
		for _, fault := range f.Faults {
			b = append(b, strings.NewReplacer(h.dir, "DIR", h.state, "STATE").Replace(fault.String()))
		}
	}
	return strings.Join(b, "; ")
}

// checkStore compares the state directory with the files that have something in use.
func (h *host) checkStore() {
	h.Helper()
	check(h.T, os.MkdirAll(h.state+"/lastgood", 0o700))
	var log bytes.Buffer
	st := keep.New(h.state, slog.New(slog.NewTextHandler(&log, nil)))
	if st.Load(); log.Len() > 0 {
		h.Errorf("a start finds: %s", log.String())
	}
	var want []string
	for _, name := range st.Names() {
		if h.src.files[name] == nil {
			h.Errorf("%q is recorded, and does not exist", name)
		}
		r, _ := st.Find(name)
		want = append(want, filepath.Base(st.CopyPath(name, r.Sum)))
	}
	slices.Sort(want)
	needed := map[string]bool{}
	needs, _ := h.src.decisions.needs()
	for v := range needs {
		needed[filepath.Base(st.CopyPath(v.Name, v.Sum))] = true
	}
	got := slices.DeleteFunc(h.copies(), func(c string) bool { return needed[c] && !slices.Contains(want, c) })
	if !slices.Equal(got, want) && !strings.Contains(h.faults(), "copy") {
		h.Errorf("copies\n got: %q\nwant: %q", got, want)
	}
	for name, f := range h.src.files {
		if _, ok := st.Find(name); f.good != nil && !ok {
			h.Errorf("%q is in use and not recorded", name)
		}
	}
}
