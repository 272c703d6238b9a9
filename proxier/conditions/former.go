package conditions

import (
	"maps"
	"time"

	"svcproxy.dev/svcproxy/source"
)

const (
	// keepFormer is how long the result of an endpoint is known that is not asked any more.
	keepFormer = 10 * time.Minute

	// mostFormer is of how many that are gone it is.
	mostFormer = 20_000
)

// formerEndpoints are those that are in no service now: gone from their files, which may be
// written again soon, or from before a restart, and not read yet.
type formerEndpoints struct {
	all    map[endpointKey]*endpoint
	before map[source.Key]bool // services that had endpoints before a restart, and are not read yet
}

// add takes in an endpoint that is gone. When it comes back, that is as if it were new, but
// for its result.
func (f *formerEndpoints) add(p endpointKey, e *endpoint, now time.Time) {
	if e.result.State == source.CheckUnknown {
		return
	}
	if len(f.all) >= mostFormer {
		f.expire(now)
	}
	if len(f.all) < mostFormer {
		f.all[p] = &endpoint{result: e.result, left: now}
	}
}

// reclaim returns the endpoint that had a key, or a new one.
func (f *formerEndpoints) reclaim(p endpointKey) *endpoint {
	e := f.all[p]
	if delete(f.all, p); e == nil {
		return new(endpoint)
	}
	return e
}

// expire forgets those that are gone for long.
func (f *formerEndpoints) expire(now time.Time) {
	maps.DeleteFunc(f.all, func(_ endpointKey, e *endpoint) bool { return e.expired(now) })
}

func (e *endpoint) expired(now time.Time) bool { return now.Sub(e.left) > keepFormer }
