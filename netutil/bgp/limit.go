package bgp

import (
	"net/netip"
	"sync"
	"time"
)

// logEvery is how often a line of GoBGP is logged that says the same of the same peer: a router that connects
// again and again makes dozens a second.
const logEvery = time.Minute

// A limiter leaves out log lines that repeat another one. Its methods may be called from any goroutine.
type limiter struct {
	mu   sync.Mutex
	last map[repeated]*repeats
}

// A repeated is what lines have in common: few are possible, as texts are of GoBGP, and peers are configured.
type repeated struct {
	peer netip.Addr
	text string
}

type repeats struct {
	at      time.Time // of the last line
	leftOut int       // since
}

// take reports whether a line is to be logged, and how many were left out before it.
func (l *limiter) take(key repeated, now time.Time) (leftOut int, some bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.last[key]
	if r != nil && now.Sub(r.at) < logEvery {
		r.leftOut++
		return 0, false
	}
	if r != nil {
		leftOut = r.leftOut
	}
	l.last[key] = &repeats{at: now}
	return leftOut, true
}
