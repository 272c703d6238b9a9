package loop

import (
	"sync"

	"svcproxy.dev/svcproxy/proxier/announce"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// An announcing tells the network of the addresses of one family.
type announcing struct {
	fam     policy.Family
	network announce.Announcer // nil: nobody is told
	telling sync.Mutex         // held while the Announcer is told, so that it hears changes in their order

	mu     sync.Mutex
	ledger announce.Ledger
}

// update changes the ledger. Any goroutine may call it.
func (a *announcing) update(change func(*announce.Ledger)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	change(&a.ledger)
}

// flush hands the Announcer what changed since it was last called. Any goroutine may call it.
func (a *announcing) flush() {
	a.telling.Lock()
	defer a.telling.Unlock()
	a.mu.Lock()
	list := a.ledger.News()
	a.mu.Unlock()
	if len(list) > 0 && a.network != nil {
		a.network.Announce(a.fam, list)
	}
}

// withdrawAll takes everything back. The goroutine of the family must have ended.
func (a *announcing) withdrawAll() {
	a.update((*announce.Ledger).Withdraw)
	a.flush()
}

func (a *announcing) withhold(drained bool) {
	a.update(func(l *announce.Ledger) { l.Withhold(drained) })
}
