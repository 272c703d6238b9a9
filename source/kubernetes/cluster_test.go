//go:build !nokubernetes

package kubernetes

import (
	"testing"
	"time"

	"svcproxy/source"
)

// listedCluster has listed all kinds, and handed on a service with an endpoint.
func listedCluster(t *testing.T, o Options) (*cluster, *record) {
	t.Helper()
	rec := &record{now: map[string]*source.Service{}}
	c := newCluster(New(o), rec)
	c.heard = [kinds]bool{true, true, true}
	c.setService(key("a"), parseService(svc("a", "10.96.0.1"), newWords()))
	c.setSlice(key("a-1"), parseSlice(eps("a-1", "a", "10.0.0.1"), newWords()))
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
	c.setSlice(key("a-1"), nil)
	now := time.Now()
	c.flush(now)
	if due, some := c.nextDue(); !some || !due.Equal(now.Add(moveTime)) {
		t.Fatalf("due %v %v, want %v", due, some, now.Add(moveTime))
	}
	c.heard = [kinds]bool{}
	now = now.Add(time.Hour)
	c.flush(now)
	if due, some := c.nextDue(); some {
		t.Errorf("due %v before all is listed: Run would not sleep", now.Sub(due))
	}
	c.heard = [kinds]bool{true, true, true}
	c.flush(now)
	if got := rec.look(); got != "default/a" {
		t.Errorf("have %q", got)
	}
}
