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

// note has the ledger changed, by any goroutine.
func (a *announcing) note(change func(*announce.Ledger)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	change(&a.ledger)
}

// tell tells the Announcer what it does not know. Any goroutine may call it.
func (a *announcing) tell() {
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
	a.note((*announce.Ledger).Withdraw)
	a.tell()
}

func (a *announcing) withhold(drained bool) {
	a.note(func(l *announce.Ledger) { l.Withhold(drained) })
}
