//go:build !nokubernetes

package kubernetes

import (
	"slices"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
)

// What is handed on tells when the slices in it were changed, each change once, also after
// it has waited; what is no time tells nothing.
func TestChangeTimesOfSlicesAreHandedOnOnce(t *testing.T) {
	c, rec := listedCluster(t, Options{})
	c.entries.setService(key("a"), parseService(svc("a", "10.96.0.1"), newWords()))
	at := func(second int) string { return time.Unix(int64(1000+second), 0).UTC().Format(time.RFC3339) }
	put := func(name, trigger string, addrs ...string) {
		s := eps(name, "a", addrs...)
		s.Annotations = map[string]string{core.EndpointsLastChangeTriggerTime: trigger}
		c.entries.setSlice(key(name), parseSlice(s, newWords()))
	}
	wants := func(what string, now time.Time, seconds ...int64) {
		t.Helper()
		rec.changed = nil
		c.flush(now)
		var want []int64
		for _, s := range seconds {
			want = append(want, 1000+s)
		}
		if !slices.Equal(rec.changed, want) {
			t.Errorf("%s: changed at %v, want %v", what, rec.changed, want)
		}
	}
	now := time.Now()
	put("a-1", at(1), "10.0.0.1", "10.0.0.2")
	put("a-2", at(2), "10.0.0.3")
	wants("two slices", now, 1, 2)
	put("a-2", at(2), "10.0.0.3")
	wants("listed again", now)
	put("a-1", at(3), "10.0.0.1")
	wants("loses an endpoint, and waits", now)
	wants("need not wait any more", now.Add(time.Minute), 3)
	put("a-2", at(4), "10.0.0.3")
	wants("the same", now.Add(time.Minute))
	put("a-2", "yesterday", "10.0.0.3", "10.0.0.4")
	wants("no time", now.Add(time.Hour))
}
