package loop

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/policy/policytest"
	"svcproxy.dev/svcproxy/source"
)

// A sync tells when what it brought to the kernel was changed where it is from, and why it
// repaired, once it has succeeded.
func TestLoopTriggers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v4 := &kernel{}
		var got []time.Time
		var causes []RepairCause
		var queued int
		l := start(t, v4, func(c *Config) {
			observe(c).queued = func(policy.Family, time.Time) { queued++ }
			observe(c).synced = func(r SyncResult) {
				if r.Err == nil {
					got, causes = append(got, r.Triggers...), append(causes, r.Repairs...)
				}
			}
		})
		begun := time.Now()
		changed := func(u source.Unit, at ...time.Time) source.Unit {
			u.Changed = at
			return u
		}
		wants := func(what string, asked int, want ...time.Time) {
			t.Helper()
			time.Sleep(time.Second)
			synctest.Wait()
			if !slices.Equal(got, want) {
				t.Errorf("%s: triggers %v, want %v", what, got, want)
			}
			if queued < asked || v4.fail == nil && queued != asked { // one that fails is tried again
				t.Errorf("%s: asked for a sync %d times, want %d", what, queued, asked)
			}
			got, queued = nil, 0
		}
		l.Apply(policytest.Set(changed(policytest.File("a", "x 10.96.0.1:80"), begun.Add(-time.Second))))
		l.Synced("file")
		wants("before the start", 1)
		time.Sleep(3 * time.Hour)
		now := time.Now()
		l.Apply(policytest.Set(changed(policytest.File("a", "x 10.96.0.2:80"), now.Add(-2*time.Hour), now.Add(-time.Minute), now.Add(time.Minute))))
		wants("long ago, a minute ago, in the future", 1, now.Add(-time.Minute))
		l.Apply(policytest.Set(changed(policytest.File("a", "x 10.96.0.2:80"), now)))
		wants("without a change", 0)
		l.Apply(policytest.Set(changed(policytest.File("b", "y 10.96.0.2:80"), now)))
		wants("refused", 0)
		v4.failWith(errors.New("no"))
		l.Apply(policytest.Set(changed(policytest.File("a", "x 10.96.0.3:80"), now)))
		wants("failing", 2)
		v4.failWith(nil)
		time.Sleep(time.Minute)
		wants("again", queued, now) // asked for a sync while the test slept
		if want := []RepairCause{FailedSync}; !slices.Equal(causes, want) {
			t.Errorf("repaired because of %q, want %q", causes, want)
		}
		v4.mu.Lock()
		causes, v4.damaged = nil, true
		v4.mu.Unlock()
		l.Repair(policy.IPv4)
		wants("repaired", 1)
		v4.mu.Lock()
		v4.damaged = true
		v4.mu.Unlock()
		l.Look(policy.IPv4)
		wants("looked", 1)
		if want := []RepairCause{Foreign, Difference}; !slices.Equal(causes, want) {
			t.Errorf("repaired because of %q, want %q", causes, want)
		}
	})
}

// What waits for a sync that does not come is of bounded size.
func TestTriggersAreBounded(t *testing.T) {
	f := testFamily(&kernel{})
	many := make([]time.Time, 700)
	for range 3 {
		f.due.triggers = addTriggers(f.due.triggers, many)
	}
	o := order{}
	for range 3 {
		o.merge(order{triggers: many})
	}
	if len(f.due.triggers) != maxTriggers || len(o.triggers) != maxTriggers {
		t.Errorf("%d and %d are kept, want %d", len(f.due.triggers), len(o.triggers), maxTriggers)
	}
}
