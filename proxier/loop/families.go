package loop

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// families are those that run.
type families struct {
	mu      sync.RWMutex // held for writing while list or drained changes
	list    []*family    // in order of the IP version
	drained atomic.Bool  // this host is

	awaited map[policy.Family]time.Time // since when families have been without a backend that is to follow
}

// all returns them. Any goroutine may call it.
func (fs *families) all() []*family {
	fs.mu.RLock()
	defer fs.mu.RUnlock()
	return fs.list
}

// await notes the families whose backend is to follow, and returns the others. The first sync is complete
// without them, and ring is called, once they have had as long as a Sync that makes no progress.
func (fs *families) await(backends map[policy.Family]proxier.Backend, ring func()) map[policy.Family]proxier.Backend {
	there, awaited := make(map[policy.Family]proxier.Backend, len(backends)), make(map[policy.Family]time.Time)
	for fam, b := range backends {
		if b != nil {
			there[fam] = b
			continue
		}
		since, again := fs.awaited[fam]
		if !again {
			since = time.Now()
			time.AfterFunc(leftOutStall(), ring)
		}
		awaited[fam] = since
	}
	fs.awaited = awaited
	return there
}

// start has a family run, which has its first order.
func (fs *families) start(ctx context.Context, f *family) {
	f.ledger.Withhold(fs.drained.Load())
	ctx, cancel := context.WithCancel(ctx)
	f.orders.stop = func() { cancel(); <-f.orders.ended }
	go f.run(ctx)
}

// change has list or drained changed. When it returns the Announcer has been told.
func (fs *families) change(write func()) {
	fs.mu.Lock()
	write()
	list := fs.list
	for _, f := range list {
		f.ledger.Withhold(fs.drained.Load())
	}
	fs.mu.Unlock()
	for _, f := range list {
		f.ledger.Flush()
	}
}

// held returns the last order that every working family holds, and how long their
// last Syncs took. Until the first complete sync all are waited for.
func (fs *families) held(first bool) (held uint64, took time.Duration) {
	const none = ^uint64(0)
	held = none
	for _, f := range fs.list {
		n := f.latest()
		if !n.leftOut() && (n.lastInKernel > 0 || first) { // nor is one waited for that came later
			held = min(held, n.lastInKernel)
			took = max(took, n.took)
		}
	}
	for _, since := range fs.awaited {
		if first && time.Since(since) < leftOutStall() {
			held = none
		}
	}
	if held == none { // there is none
		held = 0
	}
	return held, took
}

// holdsOf reports whether every working family holds what an order has of a service, though maybe not
// another large service of the order. All orders up to held are complete.
func (fs *families) holdsOf(held uint64, key source.Key, number uint64) bool {
	if number <= held {
		return true
	}
	if held == 0 {
		return false
	}
	for _, f := range fs.list {
		if n := f.latest(); !n.leftOut() && n.lastInKernel > 0 && (n.lastSynced < number || f.unfinished(key)) {
			return false
		}
	}
	return true
}

// late returns a family that does not hold an order; nil: there is none. With 0, any counts.
func (fs *families) late(number uint64, fam policy.Family) *family {
	for _, f := range fs.all() {
		if (fam == 0 || f.fam == fam) && f.latest().lastInKernel < number {
			return f
		}
	}
	return nil
}
