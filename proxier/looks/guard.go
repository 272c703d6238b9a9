// Package looks is what backends share that remember what the kernel holds of theirs.
//
// Looks compare the kernel with what a backend remembers. They run beside the syncs, which
// change both, and take a while: what a look reads of an object that a sync changes
// meanwhile may be of before the change or after it, and means nothing. So a Guard adds to
// the Objects of each running look what is changed until the look ends. What an object
// holds, and how it is compared and repaired, is each backend's own.
package looks

import "sync"

// Objects are some objects in the kernel, or all; of the zero value none.
type Objects[K comparable] struct {
	All  bool
	Some map[K]bool
}

// Has reports whether an object is among them.
func (o *Objects[K]) Has(key K) bool { return o.All || o.Some[key] }

// Add adds an object.
func (o *Objects[K]) Add(key K) {
	if o.Some == nil {
		o.Some = map[K]bool{}
	}
	o.Some[key] = true
}

// Merge adds other objects.
func (o *Objects[K]) Merge(others *Objects[K]) {
	o.All = o.All || others.All
	for key := range others.Some {
		o.Add(key)
	}
}

// A Guard is the lock of what a backend remembers. Its own methods are called with the lock held.
type Guard[K comparable] struct {
	sync.Mutex
	Writing *Objects[K] // what the running sync changes; nil: none runs
	looks   map[*Objects[K]]struct{}
}

// Begin notes what a sync is going to change.
func (g *Guard[K]) Begin(o *Objects[K]) {
	g.Writing = o
	for look := range g.looks {
		look.Merge(o)
	}
}

// Forget ends a sync after which it is unknown what the kernel holds.
func (g *Guard[K]) Forget() {
	g.Writing = nil
	for look := range g.looks {
		look.All = true
	}
}

// BeginLook begins a look, and returns what means nothing to it: more and more, until EndLook.
func (g *Guard[K]) BeginLook() *Objects[K] {
	look := &Objects[K]{}
	if g.Writing != nil {
		look.Merge(g.Writing)
	}
	if g.looks == nil {
		g.looks = map[*Objects[K]]struct{}{}
	}
	g.looks[look] = struct{}{}
	return look
}

// EndLook ends a look.
func (g *Guard[K]) EndLook(look *Objects[K]) { delete(g.looks, look) }
