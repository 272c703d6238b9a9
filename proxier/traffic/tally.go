package traffic

import (
	"sync"

	"svcproxy.dev/svcproxy/proxier"
)

// maxPairs bounds how many pairs a tally has between two readings. Those beyond it,
// which a host would have with 100,000 busy endpoints behind several addresses each, are
// counted as lost.
const maxPairs = 1 << 20

// A Connection is one of connection tracking, which the kernel translated.
type Connection struct {
	proxier.Pair
	Ended          bool // closed on both sides, only remembered
	Packets, Bytes uint64
}

// An Event is the beginning or the end of a connection.
type Event struct {
	Connection
	Begun bool // else connection tracking has forgotten it
}

// A tally counts events by pair, between two readings: whose they are is looked up
// once for all of them.
type tally struct {
	mu    sync.Mutex
	pairs map[proxier.Pair]proxier.Count
	lost  uint64
}

func (t *tally) add(e Event) {
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

// losses returns how often something was lost.
func (t *tally) losses() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.lost
}
