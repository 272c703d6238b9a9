package loop

import (
	"slices"

	"svcproxy.dev/svcproxy/proxier"
)

// announce takes over what a Sync that succeeded has put into the kernel.
func (f *family) announce(lacks *proxier.PartialError) {
	f.mu.Lock()
	f.announcing.Synced(f.desired.state.Services, f.desired.changes.Services, lacks)
	f.mu.Unlock()
	f.tellAnnouncer()
}

// tellAnnouncer tells the Announcer what it does not know. Any goroutine may call it.
func (f *family) tellAnnouncer() {
	f.telling.Lock()
	defer f.telling.Unlock()
	f.mu.Lock()
	list := f.announcing.News()
	f.mu.Unlock()
	if len(list) > 0 && f.cfg.Announcer != nil {
		f.cfg.Announcer.Announce(f.fam, list)
	}
}

// withdrawAll takes everything back. The goroutine of the family must have ended.
func (f *family) withdrawAll() {
	f.mu.Lock()
	f.announcing.Withdraw()
	f.mu.Unlock()
	f.tellAnnouncer()
}

// DrainHost has nothing announced from now on, or again what is: this host is drained, or not any more. When
// it returns the Announcer has been told, whatever families are doing: a sync may take its time.
func (l *Loop) DrainHost(drained bool) {
	l.mu.Lock()
	l.drained = drained
	families := slices.Clone(l.families)
	for _, f := range families {
		f.withhold(drained)
	}
	l.mu.Unlock()
	for _, f := range families {
		f.tellAnnouncer()
	}
}

func (f *family) withhold(drained bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.announcing.Withhold(drained)
}
