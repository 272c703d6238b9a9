package ipvs

import (
	"container/heap"
	"time"

	"svcproxy.dev/svcproxy/netutil/lvs"
)

// maxDue is how many servers one sync checks for their drains, a message each:
// changes wait for no more than these.
const maxDue = 64

// The time between two checks of a drain grows with its age up to maxDrainLook. After
// its timeout, which it survives only if the kernel lost it, it is checked every
// minDrainLook.
const (
	minDrainLook = time.Second
	maxDrainLook = 30 * time.Second
)

// nextLook returns how long after now to check a drain: its connections may have ended,
// or it has timed out.
func nextLook(since, now time.Time, timeout time.Duration) time.Duration {
	waited := max(0, now.Sub(since))
	switch left := timeout - waited; {
	case left <= 0:
		return minDrainLook
	case waited < counterLag:
		return min(counterLag-waited, left)
	default:
		return min(waited, maxDrainLook, left)
	}
}

// A drainQueue holds which servers to check, and when. The zero value is empty.
type drainQueue struct {
	heap  []drainCheck
	index map[lvs.Key]int // in heap
}

type drainCheck struct {
	key lvs.Key
	at  time.Time
}

// set sets when to check a server.
func (r *drainQueue) set(k lvs.Key, at time.Time) {
	i, has := r.index[k]
	if !has {
		heap.Push(r, drainCheck{k, at})
		return
	}
	r.heap[i].at = at
	heap.Fix(r, i)
}

func (r *drainQueue) remove(k lvs.Key) {
	if i, has := r.index[k]; has {
		heap.Remove(r, i)
	}
}

// next returns when to check the first server; zero: there is none.
func (r *drainQueue) next() time.Time {
	if len(r.heap) == 0 {
		return time.Time{}
	}
	return r.heap[0].at
}

// due removes and returns the servers that are due, n at most.
func (r *drainQueue) due(now time.Time, n int) (keys []lvs.Key) {
	for len(keys) < n && len(r.heap) > 0 && !r.heap[0].at.After(now) {
		keys = append(keys, heap.Pop(r).(drainCheck).key)
	}
	return keys
}

// Len, Less, Swap, Push and Pop implement heap.Interface.
func (r *drainQueue) Len() int           { return len(r.heap) }
func (r *drainQueue) Less(i, j int) bool { return r.heap[i].at.Before(r.heap[j].at) }

func (r *drainQueue) Swap(i, j int) {
	r.heap[i], r.heap[j] = r.heap[j], r.heap[i]
	r.index[r.heap[i].key], r.index[r.heap[j].key] = i, j
}

func (r *drainQueue) Push(x any) {
	if r.index == nil {
		r.index = map[lvs.Key]int{}
	}
	r.index[x.(drainCheck).key] = len(r.heap)
	r.heap = append(r.heap, x.(drainCheck))
}

func (r *drainQueue) Pop() any {
	last := r.heap[len(r.heap)-1]
	r.heap = r.heap[:len(r.heap)-1]
	delete(r.index, last.key)
	return last
}
