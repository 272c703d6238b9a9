//go:build !nokubernetes

package kubernetes

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"svcproxy.dev/svcproxy/internal/fatal"
)

// wiped has an API server forget all objects, as one whose database is new, or only those of one kind.
func (a *apiServer) wiped(resources ...string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, r := range resources {
		delete(a.objects, r)
	}
	a.version++
	a.oldest, a.events = a.version, nil
}

// nulled is wiped, of a server that streams no lists and writes null for the items of an empty one.
func (a *apiServer) nulled(resources ...string) {
	a.wiped(resources...)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.streams, a.nulls = false, true
}

// restored gives an API server another version, as one whose database is from a backup.
func (a *apiServer) restored(version int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.version, a.oldest, a.events = version, version, nil
}

func (r *running) held(reason string) {
	r.t.Helper()
	r.eventually("held: "+reason, func() bool {
		w := strings.Join(r.src.Status().Warnings, "; ")
		return r.src.Held() == 1 && strings.Contains(w, "HELD") && strings.Contains(w, reason)
	})
}

func (r *running) notHeld() {
	r.t.Helper()
	r.eventually("used again", func() bool { return r.src.Held() == 0 && len(r.src.Status().Warnings) == 0 })
}

const full = "default/a 10.0.0.1 10.0.0.2; default/b 10.0.0.3; default/kubernetes 10.0.0.9"

// fullServer has a node, the service of the API server, and two others.
func fullServer(t *testing.T) *apiServer {
	return startAPIServer(t, &core.Node{ObjectMeta: meta.ObjectMeta{Name: "here", Labels: map[string]string{core.LabelTopologyZone: "z"}}},
		svc("kubernetes", "10.96.0.1"), eps("kubernetes", "kubernetes", "10.0.0.9"),
		svc("a", "10.96.0.2"), eps("a-1", "a", "10.0.0.1", "10.0.0.2"), svc("b", "10.96.0.3"), eps("b-1", "b", "10.0.0.3"))
}

// What an API server no longer has when it is listed again is held: all of it, or of one kind, and what is of an earlier
// time. What it deletes in a watch is not.
func TestRemovalsOfAListAreHeld(t *testing.T) {
	for _, tt := range []struct {
		name   string
		lose   func(a *apiServer)
		reason string
	}{
		{"all", func(a *apiServer) { a.wiped("services", "endpointslices", "nodes") }, "no services, and 2 were known"},
		{"all but its own service", func(a *apiServer) {
			a.wiped("services", "endpointslices", "nodes")
			a.put(svc("kubernetes", "10.96.0.1"), eps("kubernetes", "kubernetes", "10.0.0.9"))
		}, "no services, and 2 were known"},
		{"services", func(a *apiServer) { a.wiped("services") }, "no services, and 2 were known"},
		{"slices", func(a *apiServer) { a.wiped("endpointslices") }, "no endpointslices, and 2 were known"},
		{"all, items are null", func(a *apiServer) { a.nulled("services", "endpointslices", "nodes") }, "no services, and 2 were known"},
		{"slices, items are null", func(a *apiServer) { a.nulled("endpointslices") }, "no endpointslices, and 2 were known"},
		{"a backup", func(a *apiServer) { delete(a.objects["services"], "default/b"); a.restored(50) }, "services is of version 50, before 107, and lacks 1 of 2"},
	} {
		for _, streams := range []bool{true, false} {
			t.Run(tt.name+map[bool]string{true: ", streamed", false: ""}[streams], func(t *testing.T) {
				t.Parallel()
				dir := t.TempDir()
				a := fullServer(t)
				a.streams = streams
				ran(t, keeping(t, a, dir), full)
				kept, err := os.ReadFile(filepath.Join(dir, lastKnownName))
				fatal.If(t, err)
				r := run(t, keeping(t, a, dir))
				r.wants(full)
				a.stop()
				tt.lose(a)
				a.start()
				r.held(tt.reason)
				time.Sleep(time.Second)
				if r.look() != full || len(r.history(0)) != 1 {
					t.Errorf("held, and handed on %q", r.history(0))
				}
				r.mu.Lock()
				if r.node == nil {
					t.Error("the node object is given up")
				}
				r.mu.Unlock()
				if now, err := os.ReadFile(filepath.Join(dir, lastKnownName)); err != nil || string(now) != string(kept) {
					t.Errorf("what was last known was written again: %v", err)
				}

				again := run(t, keeping(t, a, dir)) // a start serves what is kept
				again.wants(full)
				again.held(tt.reason)

				a.put(svc("c", "10.96.0.4")) // what comes in a watch meanwhile counts with the rest
				for _, one := range []*running{r, again} {
					if some, err := one.src.Confirm(t.Context()); !some || err != nil {
						t.Errorf("confirm: %v, %v", some, err)
					}
					one.notHeld()
					one.eventually("as the server has it", func() bool {
						return one.look() != full && strings.Contains(one.look(), "default/c")
					})
					if some, err := one.src.Confirm(t.Context()); some || err != nil {
						t.Errorf("a second confirm: %v, %v", some, err)
					}
				}
			})
		}
	}
}

// A list that is full again, and one that lacks nothing, is used without a word.
func TestHeldListIsFullAgain(t *testing.T) {
	t.Parallel()
	a := fullServer(t)
	o := at(a)
	o.askHeld = 100 * time.Millisecond
	r := run(t, o)
	r.wants(full)
	a.stop()
	a.wiped("services", "endpointslices")
	a.start()
	r.held("no services")
	a.put(svc("a", "10.96.0.2"), eps("a-1", "a", "10.0.0.1"))
	r.wants("default/a 10.0.0.1")
	r.notHeld()

	a.stop()
	a.restored(50)
	a.put(eps("a-1", "a", "10.0.0.7"))
	a.start()
	r.wants("default/a 10.0.0.7")
	if r.src.Held() != 0 {
		t.Error("an older list that lacks nothing is held")
	}
}

// What a watch reports deleted is gone, down to the last; so is what allow_empty lets through.
func TestWatchedRemovalsAreNotHeld(t *testing.T) {
	t.Parallel()
	a := fullServer(t)
	r := run(t, at(a))
	r.wants(full)
	a.delete(svc("a", ""), svc("b", ""), eps("a-1", "a"), eps("b-1", "b"))
	r.wants("default/kubernetes 10.0.0.9")
	a.put(svc("a", "10.96.0.2"))
	r.wants("default/a; default/kubernetes 10.0.0.9")
	r.src.SetAllowEmpty(true)
	a.stop()
	a.wiped("services", "endpointslices", "nodes")
	a.start()
	r.wants("")
	if r.src.Held() != 0 {
		t.Error("held")
	}
	r.eventually("told that there is no node object", func() bool { r.mu.Lock(); defer r.mu.Unlock(); return r.node == nil })
}

// A change shortly before a list is held is kept for the next start, although the source ends while the list is held.
func TestKeptWhileHeld(t *testing.T) {
	t.Parallel()
	const changed = "default/a 10.0.0.1 10.0.0.2; default/b 10.0.0.4; default/kubernetes 10.0.0.9"
	a, dir := fullServer(t), t.TempDir()
	t.Run("ends while it is held", func(t *testing.T) {
		r := run(t, keeping(t, a, dir))
		r.wants(full)
		a.put(eps("b-1", "b", "10.0.0.4"))
		r.wants(changed)
		a.stop()
		a.wiped("services", "endpointslices", "nodes")
		a.start()
		r.held("no services")
	})
	r := run(t, keeping(t, a, dir))
	r.wants(changed)
	r.held("no services")
	r.eventually("told of the node object", func() bool { r.mu.Lock(); defer r.mu.Unlock(); return r.node != nil })
}
