package file

import (
	"net/netip"
	"slices"
	"time"

	"svcproxy.dev/svcproxy/source"
)

// A Guard says which changes of files wait for a word of the admin.
type Guard struct {
	// Removals is the share of all services of files, and of the endpoints of each
	// service, that changes may remove within a minute, in per cent; 0: any. It
	// counts where there are ten or more.
	Removals int

	// Manual has every change wait for Apply or Confirm.
	Manual bool
}

func (g Guard) off() bool { return g == Guard{} }

// exceeds reports whether n of so many are more than the setting lets go.
func (g Guard) exceeds(n, of int) bool {
	return g.Removals > 0 && n > 0 && of >= guardLeast && n*100 > g.Removals*of
}

const (
	// guardLeast is from how many services, or endpoints, on a share of them counts.
	guardLeast = 10

	// guardWindow is for how long what was removed counts with what is removed next:
	// files that vanish one by one are one removal.
	guardWindow = time.Minute
)

// recentRemovals are what was removed lately. They belong to the goroutine of Run.
type recentRemovals struct {
	services  removals[source.Key]
	endpoints map[source.Key]*removals[endpointID]
	pruned    time.Time
}

// prune forgets what is too long ago to count.
func (r *recentRemovals) prune(now time.Time) {
	if now.Sub(r.pruned) < guardWindow/4 {
		return
	}
	r.pruned = now
	for k, of := range r.endpoints {
		if gone, _ := of.before(now, 0); gone == 0 {
			delete(r.endpoints, k)
		}
	}
}

// An endpointID tells the endpoints of a service apart: the n-th with this address.
type endpointID struct {
	addr netip.Addr
	n    int
}

// removals are what was removed of one whole within guardWindow, and how large that was.
type removals[K comparable] struct {
	gone  map[K]time.Time
	sizes []sizeAt // the largest of each second
}

type sizeAt struct {
	at   time.Time
	size int
}

// before returns how many were removed lately, and how many there were at most, with size now.
func (r *removals[K]) before(now time.Time, size int) (gone, most int) {
	for k, at := range r.gone {
		if now.Sub(at) >= guardWindow {
			delete(r.gone, k)
		}
	}
	r.sizes = slices.DeleteFunc(r.sizes, func(s sizeAt) bool { return now.Sub(s.at) >= guardWindow })
	for _, s := range r.sizes {
		size = max(size, s.size)
	}
	return len(r.gone), size
}

// remove notes what was removed of this many.
func (r *removals[K]) remove(now time.Time, size int, list []K) {
	if r.gone == nil {
		r.gone = map[K]time.Time{}
	}
	for _, k := range list {
		r.gone[k] = now
	}
	if n := len(r.sizes); n > 0 && now.Sub(r.sizes[n-1].at) < time.Second {
		r.sizes[n-1].size = max(r.sizes[n-1].size, size)
	} else {
		r.sizes = append(r.sizes, sizeAt{now, size})
	}
}

// have returns how many of list were removed lately.
func (r *removals[K]) have(list []K) (n int) {
	for _, k := range list {
		if _, ok := r.gone[k]; ok {
			n++
		}
	}
	return n
}
