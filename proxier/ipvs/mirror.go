package ipvs

import (
	"maps"
	"net/netip"
	"slices"

	"svcproxy.dev/svcproxy/netutil/lvs"
	"svcproxy.dev/svcproxy/proxier/looks"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// A mirror is what IPVS and our device hold after the last Sync, for looks beside Syncs.
// Servers in it are never modified. The zero value knows nothing.
type mirror struct {
	looks.Guard[lvs.Key] // of servers, and of addresses, which have no protocol

	known   bool
	servers map[lvs.Key]*server
	bound   map[netip.Addr]struct{}
	foreign map[lvs.Key]struct{} // desired, but owned by another program

	since   *looks.Objects[lvs.Key] // what means nothing to the running look; nil: none runs
	found   found
	differs bool // the running look has found something
}

// found is what looks have found to differ from the mirror and no Sync has repaired.
type found struct {
	servers  map[lvs.Key]bool // true: one of ours was missing, whatever exists by now
	addrs    bool             // of our device
	timeouts bool
	reported bool // by Watch, whose caller requests a sync
}

// maxRepairs is how many servers one Sync repairs, at some ten messages each: changes
// wait for no more than these.
const maxRepairs = 256

// takeRepairs removes and returns what one Sync repairs, beginning with what it changes anyway.
func (f *found) takeRepairs(changes map[lvs.Key]struct{}) found {
	out := *f
	*f = found{}
	if len(out.servers) <= maxRepairs {
		return out
	}
	rest := out.servers
	f.servers, out.servers = rest, make(map[lvs.Key]bool, maxRepairs)
	for key := range changes {
		move(out.servers, rest, key)
	}
	for _, key := range slices.SortedFunc(maps.Keys(rest), compareKeys) {
		if len(out.servers) < maxRepairs {
			move(out.servers, rest, key)
		}
	}
	return out
}

func move[K comparable, V any](to, from map[K]V, key K) {
	if v, has := from[key]; has {
		to[key] = v
		delete(from, key)
	}
}

// server adds a server. Once missing, it stays noted as missing.
func (f *found) server(key lvs.Key, missing bool) {
	if f.servers == nil {
		f.servers = map[lvs.Key]bool{}
	}
	f.servers[key] = f.servers[key] || missing
}

// missing returns our servers that were missing.
func (f *found) missing() (keys []lvs.Key) {
	for key, missing := range f.servers {
		if missing {
			keys = append(keys, key)
		}
	}
	return keys
}

// forget clears the mirror: a Sync begins that compares everything, or one has failed.
// It returns the servers that looks found missing.
func (m *mirror) forget() (missing []lvs.Key) {
	m.Lock()
	defer m.Unlock()
	missing = m.found.missing()
	m.Forget()
	m.known, m.servers, m.bound, m.foreign, m.found = false, nil, nil, nil, found{}
	return missing
}

// begin notes, before the kernel is changed, which servers a Sync with a delta is going
// to change. It adds to them those to repair, and returns what to repair.
func (m *mirror) begin(servers map[lvs.Key]struct{}, delta *policy.Delta) found {
	m.Lock()
	defer m.Unlock()
	f := m.found.takeRepairs(servers)
	t := &looks.Objects[lvs.Key]{All: f.addrs} // any address may come or go
	for key := range f.servers {
		servers[key] = struct{}{}
	}
	for key := range servers {
		t.Add(key)
		t.Add(lvs.Key{Addr: key.Addr}) // it may be kept for draining, or freed
	}
	for _, a := range slices.Concat(delta.BoundAddrs.Gained, delta.BoundAddrs.Lost) {
		t.Add(lvs.Key{Addr: a})
	}
	m.Begin(t)
	return f
}

// end sets what the kernel holds after a Sync that succeeded: for what it touched if
// that is known, for everything otherwise.
func (m *mirror) end(servers map[lvs.Key]*server, bound map[netip.Addr]struct{}, foreign map[lvs.Key]struct{}) {
	m.Lock()
	defer m.Unlock()
	if m.known && m.Writing != nil && !m.Writing.All {
		for key := range m.Writing.Some {
			copyKey(m.servers, servers, key)
			copyKey(m.foreign, foreign, key)
			copyKey(m.bound, bound, key.Addr)
		}
	} else {
		m.servers, m.bound, m.foreign = maps.Clone(servers), maps.Clone(bound), maps.Clone(foreign)
	}
	m.Writing, m.known = nil, true
}

// copyKey makes one map equal to another at a key.
func copyKey[K comparable, V any](to, from map[K]V, key K) {
	if v, has := from[key]; has {
		to[key] = v
	} else {
		delete(to, key)
	}
}

// beginLook begins a look, and returns which servers to look at. It returns false if
// there is nothing known to compare with.
func (m *mirror) beginLook() (servers, foreign []lvs.Key, known bool) {
	m.Lock()
	defer m.Unlock()
	if !m.known {
		return nil, nil, false
	}
	m.differs, m.since = false, m.BeginLook()
	return slices.Collect(maps.Keys(m.servers)), slices.Collect(maps.Keys(m.foreign)), true
}

// pick returns one of the servers, a different one each time. It returns false while a
// missing one means nothing: a Sync may have just removed it, or is about to repair it.
func (m *mirror) pick() (key lvs.Key, known bool) {
	m.Lock()
	defer m.Unlock()
	if !m.known || m.Writing != nil || len(m.found.servers) > 0 {
		return key, false
	}
	for key := range m.servers {
		return key, true
	}
	return key, false
}

// endLook ends a look, and reports whether it has found anything.
func (m *mirror) endLook() bool {
	m.Lock()
	defer m.Unlock()
	m.EndLook(m.since)
	m.since = nil
	return m.differs
}

// unrepaired reports whether looks have found something that no Sync has repaired and
// Watch has not reported.
func (m *mirror) unrepaired() bool {
	m.Lock()
	defer m.Unlock()
	return !m.found.reported && (len(m.found.servers) > 0 || m.found.addrs || m.found.timeouts)
}

// markReported notes that Watch reports what looks have found, to a caller that requests a sync.
func (m *mirror) markReported() {
	m.Lock()
	defer m.Unlock()
	m.found.reported = true
}

// reported reports whether Watch has reported what looks have found.
func (m *mirror) reported() bool {
	m.Lock()
	defer m.Unlock()
	return m.found.reported
}

// changedSince reports whether a Sync has changed a server since the look began.
func (m *mirror) changedSince(key lvs.Key) bool {
	m.Lock()
	defer m.Unlock()
	return m.since.Has(key)
}

// compare notes a server that differs, as read since the look began; nil: none. It
// ignores one that a Sync has changed since.
func (m *mirror) compare(key lvs.Key, have *server) {
	m.Lock()
	defer m.Unlock()
	if !m.since.Has(key) && !have.matches(m.servers[key]) {
		m.found.server(key, have == nil)
		m.differs = true
	}
}

// foreignGone notes that a foreign server was removed that a service wants.
func (m *mirror) foreignGone(key lvs.Key) {
	m.Lock()
	defer m.Unlock()
	if !m.since.Has(key) {
		m.found.server(key, false)
		m.differs = true
	}
}

// compareAddrs notes missing and extra addresses of our device.
func (m *mirror) compareAddrs(have map[netip.Addr]struct{}) {
	m.Lock()
	defer m.Unlock()
	missing, extra := addrDifference(have, m.bound)
	for _, a := range slices.Concat(missing, extra) {
		if !m.since.Has(lvs.Key{Addr: a}) {
			m.found.addrs, m.differs = true, true
		}
	}
}

// timeoutsDiffer notes that the kernel's timeouts differ from the configured ones.
func (m *mirror) timeoutsDiffer() {
	m.Lock()
	defer m.Unlock()
	m.found.timeouts, m.differs = true, true
}

// matches reports whether the kernel's s is as desired.
func (s *server) matches(want *server) bool {
	if s == nil || want == nil {
		return s == want
	}
	return s.Server == want.Server && slices.EqualFunc(s.dests, want.dests, isAs)
}
