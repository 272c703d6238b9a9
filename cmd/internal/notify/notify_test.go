package notify

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"svcproxy.dev/svcproxy/cmd/internal/announcer"
	"svcproxy.dev/svcproxy/cmd/internal/changes"
	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/internal/logtest"
	"svcproxy.dev/svcproxy/proxier/claims"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/policy/policytest"
	"svcproxy.dev/svcproxy/proxier/report"
	"svcproxy.dev/svcproxy/source"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A world is a host with one service, and files whose states are set by a test.
type world struct {
	*testing.T
	*Notifier
	log   logtest.Text
	ready chan struct{}

	mu    sync.Mutex
	fails int // calls
	files map[string]source.FileState
	snap  *report.Snapshot
}

func newWorld(t *testing.T, s configs.Notify) *world {
	w := &world{T: t, ready: make(chan struct{}), files: map[string]source.FileState{}}
	w.endpoints()
	s.Timeout = max(s.Timeout, 10*time.Second)
	w.Notifier = New(Config{
		Log: slog.New(slog.NewTextHandler(&w.log, nil)), Node: "lb1", Settings: settingsFile(t), Version: "v1", Called: w.count,
		Changes: changes.New(changes.Config{
			Snapshot: func() *report.Snapshot { w.mu.Lock(); defer w.mu.Unlock(); return w.snap },
			Sources:  w.sources,
			Sessions: func() []announcer.Session { return nil },
			Mode:     func() (name, why string) { return "nftables", "it is set" },
		}),
	}, s)
	return w
}

func (w *world) count(ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !ok {
		w.fails++
	}
}

// settingsFile returns the path of an svcproxy.toml that no other user can change.
func settingsFile(t *testing.T) string {
	path := filepath.Join(t.TempDir(), "svcproxy.toml")
	fatal.If(t, os.WriteFile(path, nil, 0o600))
	return path
}

func (w *world) sources() []source.Status {
	w.mu.Lock()
	defer w.mu.Unlock()
	var st source.Status
	for name, state := range w.files {
		st.Files = append(st.Files, source.FileStatus{Path: name, State: state})
	}
	slices.SortFunc(st.Files, func(a, b source.FileStatus) int { return strings.Compare(a.Path, b.Path) })
	return []source.Status{st}
}

// set sets the state of a file; empty: it is gone.
func (w *world) set(name, state string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.files[name] = source.FileState(state); state == "" {
		delete(w.files, name)
	}
}

// endpoints sets the conditions of the endpoints of the service, in the format of policytest.Conditions.
func (w *world) endpoints(known ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	svc := policytest.Service(policytest.Probed, policytest.Endpoints("10.0.0.1", "10.0.0.2"))
	w.snap = &report.Snapshot{Snapshot: claims.Snapshot{Node: policytest.Node()}}
	u := claims.UnitService{Unit: source.UnitID{Source: "file", Name: "web.toml"}}
	u.Service, u.Conditions = svc, policytest.Conditions(known...)
	w.snap.Services = append(w.snap.Services, u)
	r := policy.Resolve(svc, u.Conditions, w.snap.Node, policy.IPv4)
	w.snap.Syncs = []report.Family{{Family: policy.IPv4, Known: true, Resolved: []*policy.Resolved{r}}}
}

// run runs the Notifier until the test ends, and returns a function that ends it earlier.
func (w *world) run() (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { w.Notifier.Run(ctx, w.ready); close(done) }()
	end = sync.OnceFunc(func() { cancel(); <-done })
	w.Cleanup(end)
	return end
}

// A fake is a target that records calls.
type fake struct {
	size int

	mu     sync.Mutex
	calls  []string          // "name was>state"; the changes of one call are joined by "+"
	last   map[string]string // last state of each object in a successful call
	answer func(list []changes.Change) error
}

func (f *fake) most() int { return max(1, f.size) }
func (f *fake) close()    {}

func (f *fake) call(ctx context.Context, list []changes.Change) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var texts []string
	for _, ch := range list {
		texts = append(texts, fmt.Sprintf("%s %s>%s", ch.Name, ch.Was, ch.State))
	}
	f.calls = append(f.calls, strings.Join(texts, "+"))
	if f.answer != nil {
		if err := f.answer(list); err != nil {
			return err
		}
	}
	if f.last == nil {
		f.last = make(map[string]string)
	}
	for _, ch := range list {
		f.last[ch.Name] = ch.State
	}
	return ctx.Err()
}

// with runs a function while no call is made.
func (f *fake) with(do func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do()
}

// taken returns the calls since the last call of taken.
func (f *fake) taken() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	text := strings.Join(f.calls, ", ")
	f.calls = nil
	return text
}

// faked makes a Notifier call f, whatever the settings name.
func (w *world) faked(f *fake) {
	w.open = func(s configs.Notify) target {
		if w.targetOf(s) == nil {
			return nil
		}
		return f
	}
}

// Each change makes one call. The states at the start make none. Of several changes within a second, the last makes a call.
func TestChangesAreCalled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, f := newWorld(t, configs.Notify{Command: []string{"/x"}}), new(fake)
		w.faked(f)
		w.set("a", "accepted")
		w.endpoints("10.0.0.1 passed")
		end := w.run()
		w.set("a", "stale") // before it is ready
		time.Sleep(5 * time.Second)
		close(w.ready)
		expect := func(what, want string) {
			t.Helper()
			time.Sleep(3 * time.Second)
			if got := f.taken(); got != want {
				t.Errorf("%s: %s, want %s", what, got, want)
			}
		}
		expect("at the start", "")
		w.set("a", "accepted")
		expect("a change", "a stale>accepted")
		w.set("a", "refused")
		w.set("a", "held")
		w.set("b", "accepted")
		expect("the last of two, and one that is new", "a accepted>held, b >accepted")
		w.set("b", "")
		expect("gone", "b accepted>")
		w.endpoints("10.0.0.1 passed", "10.0.0.2 passed")
		expect("a first check that passes", "")
		w.endpoints("10.0.0.1 failed", "10.0.0.2 passed")
		expect("down", "10.0.0.1 up>down")
		w.endpoints("10.0.0.1 passed", "10.0.0.2 passed")
		expect("up again", "10.0.0.1 down>up")

		w.Use(configs.Notify{Command: []string{"/y"}, Timeout: time.Second})
		expect("another program", "")
		w.Use(configs.Notify{})
		w.set("a", "refused")
		expect("nothing is called", "")
		w.Use(configs.Notify{URL: "http://x/", Timeout: time.Second})
		expect("at a new beginning", "")
		w.set("a", "accepted")
		expect("after it", "a refused>accepted")
		end()
	})
}

// A call is made if the first check of an endpoint fails, and again when a check passes.
func TestFirstCheckThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, f := newWorld(t, configs.Notify{Command: []string{"/x"}}), new(fake)
		w.faked(f)
		close(w.ready)
		end := w.run()
		time.Sleep(2 * time.Second)
		w.endpoints("10.0.0.1 failed", "10.0.0.2 passed")
		time.Sleep(2 * time.Second)
		w.endpoints("10.0.0.1 passed", "10.0.0.2 passed")
		time.Sleep(2 * time.Second)
		if got := f.taken(); got != "10.0.0.1 checking>down, 10.0.0.1 down>up" {
			t.Error(got)
		}
		end()
	})
}

// A thousand changes a second make a bounded number of calls. The last call for each object has its last state.
func TestFlaps(t *testing.T) {
	for _, size := range []int{1, 100} {
		synctest.Test(t, func(t *testing.T) {
			w, f := newWorld(t, configs.Notify{Command: []string{"/x"}}), &fake{size: size}
			w.faked(f)
			const objects, seconds = 500, 60
			random := rand.New(rand.NewPCG(1, 2))
			states := []string{"accepted", "stale", "refused", "held"}
			for i := range objects {
				w.set(fmt.Sprint(i), "accepted")
			}
			luck := rand.New(rand.NewPCG(3, 4))
			f.answer = func([]changes.Change) error { // one in ten fails
				if luck.IntN(10) == 0 {
					return errors.New("no")
				}
				return nil
			}
			close(w.ready)
			end := w.run()
			time.Sleep(2 * time.Second)
			for range seconds * 1000 {
				w.set(fmt.Sprint(random.IntN(objects)), states[random.IntN(len(states))])
				time.Sleep(time.Millisecond)
			}
			f.with(func() {
				if n, most := len(f.calls), burst+perSecond*(seconds+2); n < seconds || n > most {
					t.Errorf("%d calls in %d s, at most %d", n, seconds, most)
				}
				f.answer = nil
			})
			time.Sleep(3 * time.Minute)
			end()
			for name, state := range w.files {
				if got := f.last[name]; got != string(state) && (got != "" || state != "accepted") {
					t.Errorf("%s is %s, and was last called %q", name, state, got)
				}
			}
			if n := len(w.failed.of); n > 0 || w.Warnings() != nil {
				t.Errorf("%d wait for another call: %v", n, w.Warnings())
			}
		})
	}
}

// Failed calls for an object are retried with its last state, with growing delays. They do not delay calls for other objects.
func TestFailedCallsAreMadeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, f := newWorld(t, configs.Notify{Command: []string{"/x"}}), new(fake)
		w.faked(f)
		bad := true
		f.answer = func(list []changes.Change) error {
			if bad && list[0].Name == "a" {
				return errors.New("no luck")
			}
			return nil
		}
		w.set("a", "accepted")
		close(w.ready)
		end := w.run()
		time.Sleep(2 * time.Second)
		w.set("a", "stale")
		time.Sleep(30 * time.Second)
		w.set("b", "stale")
		time.Sleep(30 * time.Second)
		w.set("a", "held")
		time.Sleep(2 * time.Second)
		calls := f.taken()
		if n := strings.Count(calls, "a accepted>stale"); n < 5 || n > 8 || strings.Count(calls, "b >stale") != 1 || strings.Count(calls, "a stale>held") != 1 {
			t.Error(calls)
		}
		want := "[notify] failed for 1 changes; retrying: no luck"
		if got := w.Warnings(); len(got) != 1 || got[0] != want {
			t.Errorf("warnings: %q", got)
		}
		f.with(func() { bad = false })
		time.Sleep(2 * time.Minute)
		if got := f.taken(); got != "a stale>held" {
			t.Errorf("when it works: %s", got)
		}
		if w.Warnings() != nil || strings.Count(w.log.String(), "a notification failed") != 1 || !strings.Contains(w.log.String(), "notifications succeed again") {
			t.Errorf("%v, log:\n%s", w.Warnings(), &w.log)
		}
		w.mu.Lock()
		if w.fails < 6 || w.fails > 10 {
			t.Errorf("%d calls failed", w.fails)
		}
		w.mu.Unlock()

		f.with(func() { bad = true })
		w.set("a", "stale")
		time.Sleep(3 * time.Minute)
		f.taken()
		f.with(func() { bad = false })
		w.Use(configs.Notify{Command: []string{"/y"}, Timeout: time.Second})
		time.Sleep(time.Second)
		if got := f.taken(); got != "a held>stale" {
			t.Errorf("after other settings: %s", got)
		}
		end()
	})
}

// While all calls fail, few are made, each for one object. When they succeed again, the last state of every object is delivered.
func TestAllCallsFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, f := newWorld(t, configs.Notify{Command: []string{"/x"}}), &fake{size: 100}
		w.faked(f)
		down := true
		f.answer = func(list []changes.Change) error {
			if down {
				return errors.New("no")
			}
			return nil
		}
		close(w.ready)
		end := w.run()
		time.Sleep(2 * time.Second)
		for i := range 1000 {
			w.set(fmt.Sprint(i), "accepted")
		}
		time.Sleep(time.Hour)
		f.with(func() {
			if n := len(f.calls); n < 60 || n > 80 {
				t.Errorf("%d calls in an hour", n)
			}
		})
		for i := range 1000 {
			w.set(fmt.Sprint(i), "stale")
		}
		f.with(func() { down, f.calls = false, nil })
		time.Sleep(3 * time.Minute)
		end()
		for i := range 1000 {
			if got := f.last[fmt.Sprint(i)]; got != "stale" {
				t.Fatalf("%d was last called %q", i, got)
			}
		}
		if n := len(f.calls); n > 300 {
			t.Errorf("%d calls", n)
		}
	})
}

// The number of objects that wait for a retry is bounded. The last states of the others are not lost meanwhile.
func TestFailedObjectsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, f := newWorld(t, configs.Notify{URL: "http://x/"}), &fake{size: 100}
		w.faked(f)
		w.target = f
		for i := range maxFailed + 500 {
			w.set(fmt.Sprint(i), "accepted")
		}
		w.Changes.Update()
		for batch := w.fresh(time.Now(), 100); len(batch) > 0; batch = w.fresh(time.Now(), 100) {
			w.failed.fail(batch, errors.New("no"), time.Now())
		}
		if n := len(w.failed.of); n > maxFailed || n < maxFailed-100 {
			t.Errorf("%d objects have failed", n)
		}
		last, _, _ := w.Changes.Position()
		if w.seen.Number >= last {
			t.Error("the others are passed over")
		}
	})
}
