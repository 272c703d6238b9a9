//go:build !nokubernetes

package kubernetes

import (
	"errors"
	"fmt"
	"io/fs"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/remote"
)

// listedCluster has listed all kinds, and handed on a service with an endpoint.
func listedCluster(t *testing.T, o Options) (*cluster, *record) {
	t.Helper()
	rec := &record{now: map[string]*source.Service{}}
	c := newCluster(New(o), rec)
	c.heard = [kinds]bool{true, true, true}
	c.entries.setService(key("a"), parseService(svc("a", "10.96.0.1"), newWords()))
	c.entries.setSlice(key("a-1"), parseSlice(eps("a-1", "a", "10.0.0.1"), newWords()))
	c.flush(time.Now())
	if got := rec.look(); got != "default/a 10.0.0.1" {
		t.Fatalf("have %q", got)
	}
	return c, rec
}

func key(name string) source.Key { return source.Key{Namespace: "default", Name: name} }

// What waits while a new session lists does not have Run look again and again.
func TestNothingIsDueBeforeAllIsListed(t *testing.T) {
	c, rec := listedCluster(t, Options{StateDir: t.TempDir()})
	c.entries.setSlice(key("a-1"), nil)
	now := time.Now()
	c.flush(now)
	if due, some := c.nextDue(); !some || !due.Equal(now.Add(remote.MoveTime)) {
		t.Fatalf("due %v %v, want %v", due, some, now.Add(remote.MoveTime))
	}
	c.heard = [kinds]bool{}
	now = now.Add(time.Hour)
	c.flush(now)
	c.keeper.Save(now)
	if due, some := c.nextDue(); some && !due.After(now) {
		t.Errorf("due %v before all is listed: Run would not sleep", now.Sub(due))
	}
	c.heard = [kinds]bool{true, true, true}
	c.flush(now)
	if got := rec.look(); got != "default/a" {
		t.Errorf("have %q", got)
	}
}

// Who came first is decided by when the object of now was created: one that was
// deleted and made again is another, also when it says the same, and one that was
// served as last known too.
func TestRecreatedObjectIsAnother(t *testing.T) {
	c, rec := listedCluster(t, Options{})
	made := func(at meta.Time, want int64) {
		t.Helper()
		c.entries.setService(key("a"), parseService(svc("a", "10.96.0.1", func(s *core.Service) { s.CreationTimestamp = at }), newWords()))
		c.flush(time.Now())
		if got := rec.since["default/a"]; got != want {
			t.Errorf("created %v: handed on as of %d, want %d", at, got, want)
		}
	}
	made(meta.Unix(2000, 0), 2000e9)
	steps := len(rec.states)
	made(meta.Unix(2000, 0), 2000e9)
	if len(rec.states) != steps {
		t.Error("handed on though nothing changed")
	}
	made(meta.Time{}, 0)

	made(meta.Unix(3000, 0), 3000e9)
	c.use(new(lastKnown), []remote.Handed{{Since: 1000e9, Service: rec.now["default/a"]}})
	if got := rec.since["default/a"]; got != 1000e9 {
		t.Errorf("last known as of %d", got)
	}
	c.flush(time.Now())
	if got := rec.since["default/a"]; got != 3000e9 {
		t.Errorf("handed on as of %d, and it was listed with 3000e9", got)
	}
}

// What is kept under the name of a server is what that one has: nothing is kept while
// it lists, and nothing of the one before waits to move.
func TestKeptUnderItsServer(t *testing.T) {
	c, _ := listedCluster(t, Options{StateDir: t.TempDir()})
	kept := func(what, want string) {
		t.Helper()
		if at, _ := c.keeper.Due(); c.listed() {
			c.keeper.Save(at)
		}
		if !c.keeper.Idle(time.After(within)) {
			t.Fatal("it is still being written")
		}
		got, k := "nothing", new(lastKnown)
		services, err := remote.Load(c.src.lastKnownPath(), k)
		if err == nil {
			got = k.Server
		} else if !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		for _, s := range services {
			got += fmt.Sprintf(" %s %d", s.Service.Key, len(s.Service.Endpoints))
		}
		if got != want {
			t.Errorf("%s: kept %q, want %q", what, got, want)
		}
	}
	c.begin("one")
	kept("first list", "nothing")
	c.heard = [kinds]bool{true, true, true}
	c.flush(time.Now())
	kept("listed", "one default/a 1")

	c.keepSoon()
	c.src.Use("two")
	kept("the new session has not begun", "one default/a 1")
	c.begin("two")
	c.keepSoon()
	kept("the new session lists", "one default/a 1")
	c.keeper.End(c.listed())
	kept("the end while it lists", "one default/a 1")
	c.entries.setSlice(key("a-1"), nil)
	c.heard = [kinds]bool{true, true, true}
	c.flush(time.Now())
	kept("listed again", "two default/a 0")

	c.begin("three")
	c.heard = [kinds]bool{true, true, true}
	c.flush(time.Now())
	kept("a server that has the same", "three default/a 0")
}
