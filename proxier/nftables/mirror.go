package nftables

import (
	"svcproxy.dev/svcproxy/proxier/looks"
	"svcproxy.dev/svcproxy/proxier/nftables/layout"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// A guardedMirror is what the kernel holds since our last commit. Only the goroutine
// of the syncs writes it, and reads it without the lock; a look reads it beside them.
type guardedMirror struct {
	guard  looks.Guard[layout.Set]
	mirror *layout.Mirror // nil: unknown, before the first sync and after a failed one
}

// setMirror replaces the mirror; nil: it is unknown what the kernel holds.
func (m *guardedMirror) setMirror(to *layout.Mirror) {
	m.guard.Lock()
	defer m.guard.Unlock()
	m.mirror = to
	m.guard.Forget()
}

// dropFlows takes the flow table, and the rule for it, out of what the kernel should hold.
func (m *guardedMirror) dropFlows(d *layout.Dialect) {
	m.guard.Lock()
	defer m.guard.Unlock()
	m.mirror.SetFlows(d, nil)
	var changed looks.Objects[layout.Set]
	changed.Add(layout.Structure)
	m.guard.Begin(&changed)
	m.guard.Writing = nil
}

// beginCommit applies a delta to the mirror, before it is committed to the kernel.
func (m *guardedMirror) beginCommit(d *layout.Dialect, delta *policy.Delta) *layout.TableUpdate {
	m.guard.Lock()
	defer m.guard.Unlock()
	u := m.mirror.Follow(d, delta)
	var changed looks.Objects[layout.Set]
	if u.ChangesStructure() {
		changed.Add(layout.Structure)
	}
	for _, e := range u.Edits {
		changed.Add(e.Set)
	}
	m.guard.Begin(&changed)
	return u
}

// endCommit records that the delta was committed.
func (m *guardedMirror) endCommit() {
	m.guard.Lock()
	defer m.guard.Unlock()
	m.guard.Writing = nil
}

// known calls do with the mirror, beside the syncs; it returns false where that is unknown.
func (m *guardedMirror) known(do func(*layout.Mirror)) bool {
	m.guard.Lock()
	defer m.guard.Unlock()
	if m.mirror != nil {
		do(m.mirror)
	}
	return m.mirror != nil
}

func (m *guardedMirror) beginLook() *looks.Objects[layout.Set] {
	m.guard.Lock()
	defer m.guard.Unlock()
	return m.guard.BeginLook()
}

// changed reports whether a sync changed something since a look began.
func (m *guardedMirror) changed(look *looks.Objects[layout.Set], s layout.Set) bool {
	m.guard.Lock()
	defer m.guard.Unlock()
	return look.Has(s)
}

func (m *guardedMirror) endLook(look *looks.Objects[layout.Set]) {
	m.guard.Lock()
	defer m.guard.Unlock()
	m.guard.EndLook(look)
}
