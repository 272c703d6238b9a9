package conditions

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// MaxDrains is how many drains there can be at once.
const MaxDrains = 10_000

// ErrTooManyDrains says that there are MaxDrains already.
var ErrTooManyDrains = fmt.Errorf("there are %d drains already; end some with svcproxy undrain", MaxDrains)

// A Drained is a target, and who drains it why.
type Drained struct {
	Target DrainTarget `json:"target"`
	policy.Drain
}

// Drains are endpoints that are to get no new connections, by command, and whether this host
// is to get none. They know nothing of services: a drain outlives new versions of files. Its
// JSON form is a list of Drained, in order. The zero Drains are empty. Methods may be called
// from any goroutine.
type Drains struct {
	mu  sync.RWMutex
	all map[DrainTarget]policy.Drain
}

// Set drains a target, or changes why it is drained. Texts are escaped and cut. The error is
// ErrTooManyDrains, and nothing is changed then.
func (d *Drains) Set(t DrainTarget, why policy.Drain) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	t = t.unmap()
	if _, again := d.all[t]; !again && len(d.all) >= MaxDrains {
		return ErrTooManyDrains
	}
	if d.all == nil {
		d.all = make(map[DrainTarget]policy.Drain)
	}
	d.all[t] = bounded(why)
	return nil
}

// Remove ends a drain, and reports whether there was one.
func (d *Drains) Remove(t DrainTarget) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	t = t.unmap()
	_, had := d.all[t]
	delete(d.all, t)
	return had
}

// Get returns the drain of exactly this target; nil: there is none.
func (d *Drains) Get(t DrainTarget) *policy.Drain {
	d.mu.RLock()
	defer d.mu.RUnlock()
	why, ok := d.all[t.unmap()]
	if !ok {
		return nil
	}
	return &why
}

// Of returns the drain of an address as an endpoint of a service; nil: there is none. Of
// two, that of the service and that of all services, it is the one whose deadline is first.
func (d *Drains) Of(key source.Key, a netip.Addr) *policy.Drain {
	ofService, ofAll := d.Get(DrainTarget{Addr: a, Service: key}), d.Get(DrainTarget{Addr: a})
	switch {
	case ofService == nil:
		return ofAll
	case ofAll == nil || ofAll.Until.IsZero():
		return ofService
	case ofService.Until.IsZero() || ofAll.Until.Before(ofService.Until):
		return ofAll
	}
	return ofService
}

// Node returns the drain of this host; nil: there is none.
func (d *Drains) Node() *policy.Drain { return d.Get(DrainTarget{Node: true}) }

// List returns all drains: that of this host first, then by address and service.
func (d *Drains) List() []Drained {
	d.mu.RLock()
	list := make([]Drained, 0, len(d.all))
	for t, why := range d.all {
		list = append(list, Drained{t, why})
	}
	d.mu.RUnlock()
	slices.SortFunc(list, func(a, b Drained) int { return a.Target.compare(b.Target) })
	return list
}

// MarshalJSON implements json.Marshaler.
func (d *Drains) MarshalJSON() ([]byte, error) { return json.Marshal(d.List()) }

// empty reports whether nothing is drained.
func (d *Drains) empty() bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return len(d.all) == 0
}

// rebase has drains that were read end when they were to, and none later than after all of its time if the clock was
// set back since; from now on whatever is done to the clock.
func (d *Drains) rebase(now time.Time) {
	for t, why := range d.all {
		if why.Until.IsZero() {
			continue
		}
		left := why.Until.Sub(now)
		if all := why.Until.Sub(why.At); all > 0 { // else it began by another clock than it ends by
			left = min(left, all)
		}
		why.Until = now.Add(left)
		d.all[t] = why
	}
}

// replace takes over the drains of o, which nobody else uses.
func (d *Drains) replace(o *Drains) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.all = o.all
}
