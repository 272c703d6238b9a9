package traffic

import (
	"sync"

	"svcproxy.dev/svcproxy/proxier"
)

const (
	// maxPairs bounds how many pairs a tally has between two looks at it. Those beyond it,
	// which is as many new ones within a second, are counted as lost.
	maxPairs = 1 << 16

	// manyPairs is with how many a tally is booked without a reading: the book keeps only
	// what is a service's, and a host may translate much else.
	manyPairs = 10_000
)

// A Connection is one of connection tracking, which the kernel translated, or, as an event, its beginning or its end.
type Connection struct {
	proxier.Pair
	Begun          bool // of an event; else connection tracking has forgotten it
	Ended          bool // closed on both sides, only remembered
	Packets, Bytes uint64
}

// A tally counts events by pair, between two readings: whose they are is looked up
// once for all of them.
type tally struct {
	mu    sync.Mutex
	pairs map[proxier.Pair]proxier.Count
	lost  uint64
}

func (t *tally) add(e Connection) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c, known := t.pairs[e.Pair]
	if !known && len(t.pairs) >= maxPairs {
		t.lost++
		return
	}
	if e.Begun {
		c.Connections++
	} else {
		c.Packets, c.Bytes = c.Packets+e.Packets, c.Bytes+e.Bytes
	}
	if t.pairs == nil {
		t.pairs = make(map[proxier.Pair]proxier.Count)
	}
	t.pairs[e.Pair] = c
}

// lose notes that the kernel had to drop events.
func (t *tally) lose() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lost++
}

// take returns what was counted since it was last called.
func (t *tally) take() map[proxier.Pair]proxier.Count {
	t.mu.Lock()
	defer t.mu.Unlock()
	pairs := t.pairs
	t.pairs = nil
	return pairs
}

// full reports whether there are so many pairs that they are to be taken.
func (t *tally) full() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.pairs) > manyPairs
}

// losses returns how often something was lost.
func (t *tally) losses() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.lost
}
