package loop

import (
	"maps"
	"sync"
	"time"

	"svcproxy.dev/svcproxy/internal/wake"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// An order is what the Loop sends to a family: all that came since it last took one.
type order struct {
	number   uint64 // of the last one; they only grow
	queued   time.Time
	services map[source.Key]policy.Subject // without Service: it is gone
	node     *policy.Node                  // all services that it touches come with it
	backend  proxier.Backend
	open     bool        // every source has been read
	full     bool        // everything is to be compared with the kernel
	repair   bool        // the backend knows of something to repair
	look     bool        // the kernel may have been changed
	triggers []time.Time // when services were changed where they are from, see triggersOf

	minimum, lookEvery *time.Duration
}

// orders is the mailbox of a family. Sending never blocks.
type orders struct {
	wake chan struct{} // room for one

	mu   sync.Mutex
	next order
}

func newOrders() orders { return orders{wake: make(chan struct{}, 1)} }

// put adds o to what is not yet taken. For the same thing the later order wins.
func (b *orders) put(o order) {
	b.mu.Lock()
	b.next.merge(o)
	b.mu.Unlock()
	wake.Once(b.wake)
}

func (b *orders) take() order {
	b.mu.Lock()
	defer b.mu.Unlock()
	o := b.next
	b.next = order{}
	return o
}

func (o *order) merge(n order) {
	o.number = max(o.number, n.number)
	if o.queued.IsZero() || len(o.services) == 0 {
		o.queued = n.queued
	}
	if o.services == nil {
		o.services = make(map[source.Key]policy.Subject, len(n.services))
	}
	maps.Copy(o.services, n.services)
	if n.node != nil {
		o.node = n.node
	}
	if n.backend != nil {
		o.backend = n.backend
	}
	if n.minimum != nil {
		o.minimum, o.lookEvery = n.minimum, n.lookEvery
	}
	o.open, o.full = o.open || n.open, o.full || n.full
	o.triggers = append(o.triggers, n.triggers[:min(len(n.triggers), maxTriggers-len(o.triggers))]...)
	o.repair, o.look = o.repair || n.repair, o.look || n.look
}
