package ipvs

import (
	"maps"
	"net/netip"
	"slices"
	"sync"

	"svcproxy/netutil/lvs"
	"svcproxy/proxier"
)

// A mirror is what the last Sync left in IPVS and on our device, as looks see it
// that run beside Syncs. Servers in it are never changed. The zero value knows nothing.
type mirror struct {
	mu      sync.Mutex
	known   bool
	servers map[lvs.Key]*server
	bound   map[netip.Addr]struct{}
	foreign map[lvs.Key]struct{} // wanted, and another program's

	syncing *touched // what the Sync under way changes; nil: none is under way
	since   *touched // what Syncs have changed since the look under way began; nil: none is under way

	found   found
	differs bool // the look under way has found something
}

// Touched are servers and addresses that Syncs change.
type touched struct {
	all     bool
	servers map[lvs.Key]struct{}
	addrs   map[netip.Addr]struct{}
}

func newTouched() *touched {
	return &touched{servers: map[lvs.Key]struct{}{}, addrs: map[netip.Addr]struct{}{}}
}

func (t *touched) merge(u *touched) {
	t.all = t.all || u.all
	for key := range u.servers {
		t.servers[key] = struct{}{}
	}
	for a := range u.addrs {
		t.addrs[a] = struct{}{}
	}
}

func (t *touched) server(key lvs.Key) bool {
	_, is := t.servers[key]
	return is || t.all
}

func (t *touched) addr(a netip.Addr) bool {
	_, is := t.addrs[a]
	return is || t.all
}

// found is what looks have found to differ from the mirror, and no Sync has repaired.
type found struct {
	servers  map[lvs.Key]bool // whether one of ours was missing, whatever is there by now
	addrs    map[netip.Addr]struct{}
	timeouts bool
	reported bool // somebody was told of it, and has it repaired
}

// maxRepairs is how many servers one Sync repairs, at some ten messages each: a
// change waits for no more than these.
const maxRepairs = 256

// take returns what one Sync is to repair, what it changes first. The rest is left.
func (f *found) take(changes map[lvs.Key]struct{}) found {
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

// server adds one, which stays missing once it was.
func (f *found) server(key lvs.Key, missing bool) {
	if f.servers == nil {
		f.servers = map[lvs.Key]bool{}
	}
	f.servers[key] = f.servers[key] || missing
}

func (f *found) addr(a netip.Addr) {
	if f.addrs == nil {
		f.addrs = map[netip.Addr]struct{}{}
	}
	f.addrs[a] = struct{}{}
}

// missing returns the servers of ours that were.
func (f *found) missing() (keys []lvs.Key) {
	for key, missing := range f.servers {
		if missing {
			keys = append(keys, key)
		}
	}
	return keys
}

// forget says that nobody knows what the kernel holds: a Sync begins that looks at
// everything, or one has failed. It returns the servers that looks have missed.
func (m *mirror) forget() (missing []lvs.Key) {
	m.mu.Lock()
	defer m.mu.Unlock()
	missing = m.found.missing()
	m.known, m.servers, m.bound, m.foreign, m.syncing, m.found = false, nil, nil, nil, nil, found{}
	if m.since != nil {
		m.since.all = true
	}
	return missing
}

// begin says, before the kernel is changed, which servers a Sync with a delta is
// going to change. It adds to them those to be repaired, and returns what these are.
func (m *mirror) begin(servers map[lvs.Key]struct{}, delta *proxier.Delta) found {
	m.mu.Lock()
	defer m.mu.Unlock()
	f, t := m.found.take(servers), newTouched()
	for key := range f.servers {
		servers[key] = struct{}{}
	}
	for key := range servers {
		t.servers[key] = struct{}{}
		t.addrs[key.Addr] = struct{}{} // may linger, or be freed
	}
	for a := range f.addrs {
		t.addrs[a] = struct{}{}
	}
	for _, a := range slices.Concat(delta.BoundAddrs.Gained, delta.BoundAddrs.Lost) {
		t.addrs[a] = struct{}{}
	}
	if m.syncing = t; m.since != nil {
		m.since.merge(t)
	}
	return f
}

// end says what the kernel holds after a Sync that succeeded: of what it touched
// where that is known, of everything otherwise.
func (m *mirror) end(servers map[lvs.Key]*server, bound map[netip.Addr]struct{}, foreign map[lvs.Key]struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if t := m.syncing; m.known && t != nil {
		copyKeys(m.servers, servers, t.servers)
		copyKeys(m.foreign, foreign, t.servers)
		copyKeys(m.bound, bound, t.addrs)
	} else {
		m.servers, m.bound, m.foreign = maps.Clone(servers), maps.Clone(bound), maps.Clone(foreign)
	}
	m.syncing, m.known = nil, true
}

// follow makes one map what another is, at the given keys.
func copyKeys[K comparable, V any](to, from map[K]V, at map[K]struct{}) {
	for key := range at {
		if v, has := from[key]; has {
			to[key] = v
		} else {
			delete(to, key)
		}
	}
}

// look begins a look, and returns which servers there are to look at. It returns
// false where nothing is known to compare with.
func (m *mirror) beginLook() (servers, foreign []lvs.Key, known bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.known {
		return nil, nil, false
	}
	m.differs = false
	if m.since = newTouched(); m.syncing != nil {
		m.since.merge(m.syncing)
	}
	return slices.Collect(maps.Keys(m.servers)), slices.Collect(maps.Keys(m.foreign)), true
}

// any returns one of the servers, another one each time. It returns false where it
// is no matter that one is missing: it may just be removed, or is about to be repaired.
func (m *mirror) pick() (key lvs.Key, known bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.known || m.syncing != nil || len(m.found.servers) > 0 {
		return key, false
	}
	for key := range m.servers {
		return key, true
	}
	return key, false
}

// looked ends a look, and reports whether it has found anything.
func (m *mirror) endLook() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.since = nil
	return m.differs
}

// unrepaired reports whether looks have found something that no Sync has repaired,
// nor somebody was told of who will have it repaired.
func (m *mirror) unrepaired() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return !m.found.reported && (len(m.found.servers)+len(m.found.addrs) > 0 || m.found.timeouts)
}

// tell says that somebody hears of what looks have found, who will have it repaired.
func (m *mirror) markReported() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.found.reported = true
}

// isTold reports whether somebody has heard of what looks have found.
func (m *mirror) reported() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.found.reported
}

// overtaken reports whether a Sync has changed a server since the look began.
func (m *mirror) changedSince(key lvs.Key) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.since.server(key)
}

// compare notes a server that is not what it was, as read since the look began;
// nil is none. Where a Sync has changed it since, nothing can be said.
func (m *mirror) compare(key lvs.Key, have *server) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.since.server(key) && !have.matches(m.servers[key]) {
		m.found.server(key, have == nil)
		m.differs = true
	}
}

// gone notes that a foreign server is no more, which a service wants.
func (m *mirror) foreignGone(key lvs.Key) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.since.server(key) {
		m.found.server(key, false)
		m.differs = true
	}
}

// compareAddrs notes addresses that our device lacks, or has too many.
func (m *mirror) compareAddrs(have map[netip.Addr]struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	missing, extra := addrDifference(have, m.bound)
	for _, a := range slices.Concat(missing, extra) {
		if !m.since.addr(a) {
			m.found.addr(a)
			m.differs = true
		}
	}
}

// timeoutsDiffer notes that the kernel has other time-outs than the settings say.
func (m *mirror) timeoutsDiffer() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.found.timeouts, m.differs = true, true
}

// holds reports whether the kernel's s is what it should be.
func (s *server) matches(want *server) bool {
	if s == nil || want == nil {
		return s == want
	}
	return s.Server == want.Server && slices.EqualFunc(s.dests, want.dests, func(have, want dest) bool {
		return have.AddrPort == want.AddrPort && have.weight == want.weight && !have.foreignOptions
	})
}
