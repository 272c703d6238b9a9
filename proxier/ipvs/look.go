package ipvs

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"svcproxy.dev/svcproxy/netutil/links"
	"svcproxy.dev/svcproxy/netutil/lvs"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/looks"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// A lookout compares what IPVS and our device hold with the mirror, beside Syncs.
type lookout struct {
	v6       bool
	timeouts lvs.Timeouts // how long the kernel is to keep idle connections; 0: as it does
	mirror   mirror
	mu       sync.Mutex // held by looks
}

// compareKernel compares servers, and if it is given no connection for that also timeouts and addresses.
func (l *lookout) compareKernel(ctx context.Context, conn *lvs.Conn) (differs bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	servers, foreign, known := l.mirror.beginLook()
	if !known {
		return false, nil
	}
	defer func() { differs = l.mirror.endLook() && err == nil }()
	if conn != nil {
		return false, l.compareServers(ctx, conn, servers, foreign)
	}
	if conn, err = lvs.Dial(ctx); err != nil {
		return false, err
	}
	differ, timeoutsErr := timeoutsDiffer(ctx, conn, l.timeouts)
	if err = errors.Join(l.compareServers(ctx, conn, servers, foreign), timeoutsErr, conn.Close()); err != nil {
		return false, err
	}
	device, err := links.OpenDummy()
	if err != nil {
		return false, err
	}
	defer device.Close()
	_, have, err := addrsOf(device, l.v6) // none if it does not exist
	if err == nil {
		l.mirror.compareRest(have, differ)
	}
	return false, err
}

// forget clears the mirror, and disowns servers that looks found missing.
func (l *lookout) forget(r *record) {
	for _, key := range l.mirror.forget() {
		r.disown(key)
	}
}

// compareServers compares servers with the mirror.
func (l *lookout) compareServers(ctx context.Context, conn *lvs.Conn, servers, foreign []lvs.Key) error {
	list, err := conn.Servers(ctx, l.v6, slices.Values(slices.Concat(servers, foreign)))
	if err != nil {
		return err
	}
	for _, key := range servers {
		s, there := list[key]
		if !there {
			l.mirror.compare(key, nil)
			continue
		}
		have, err := withDests(ctx, conn, s)
		if err != nil {
			return err
		}
		l.mirror.compare(key, have)
		proxier.Progressed(ctx)
	}
	for _, key := range foreign {
		if _, there := list[key]; !there {
			l.mirror.compare(key, nil)
		}
	}
	return nil
}

// canaryInterval is how often one of our servers, any of them, is looked up: a message
// each time. IPVS has no events.
const canaryInterval = 250 * time.Millisecond

// runCanary looks at all servers when one of them is missing.
func (l *lookout) runCanary(ctx context.Context, conn *lvs.Conn, changed func()) {
	defer conn.Close()
	tick := time.NewTicker(canaryInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		key, known := l.mirror.pick()
		if !known {
			continue
		}
		if there, err := conn.Has(ctx, key); there || err != nil { // an error is reported by the next look
			continue
		}
		if differs, err := l.compareKernel(ctx, conn); err == nil && differs {
			l.mirror.markReported()
			changed()
		}
	}
}

// setTimeouts sets the timeouts if the kernel has others.
func (l *lookout) setTimeouts(ctx context.Context, conn *lvs.Conn) error {
	differ, err := timeoutsDiffer(ctx, conn, l.timeouts)
	if err != nil || !differ {
		return err
	}
	return conn.SetTimeouts(ctx, l.timeouts)
}

// timeoutsDiffer reports whether the kernel has other timeouts.
func timeoutsDiffer(ctx context.Context, conn *lvs.Conn, want lvs.Timeouts) (bool, error) {
	if want == (lvs.Timeouts{}) {
		return false, nil
	}
	have, err := conn.Timeouts(ctx)
	if err != nil {
		return false, err
	}
	differs := func(want, have time.Duration) bool { return want != 0 && seconds(want) != seconds(have) }
	return differs(want.TCP, have.TCP) || differs(want.TCPFin, have.TCPFin) || differs(want.UDP, have.UDP), nil
}

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

// maxRepairs is how many servers one Sync repairs that it does not change, at some ten messages each: changes
// wait for no more than these.
const maxRepairs = 256

// takeRepairs removes and returns what one Sync repairs: what it changes anyway, and maxRepairs others.
func (f *found) takeRepairs(changes map[lvs.Key]struct{}) found {
	out := *f
	*f = found{}
	if len(out.servers) <= maxRepairs {
		return out
	}
	rest, left := out.servers, maxRepairs
	f.servers, out.servers = rest, map[lvs.Key]bool{}
	for key, missing := range rest {
		_, changed := changes[key]
		if !changed {
			left--
		}
		if changed || left >= 0 {
			out.servers[key] = missing
			delete(rest, key)
		}
	}
	return out
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

// compare notes a server that differs, as read since the look began; nil: none, which is news of a foreign server that a
// service wants, too. It ignores one that a Sync has changed since.
func (m *mirror) compare(key lvs.Key, have *server) {
	m.Lock()
	defer m.Unlock()
	_, foreign := m.foreign[key]
	if !m.since.Has(key) && (foreign || !have.matches(m.servers[key])) {
		m.found.server(key, have == nil && !foreign)
		m.differs = true
	}
}

// compareRest notes that our device misses addresses or has extra ones, and whether timeouts differ.
func (m *mirror) compareRest(have map[netip.Addr]struct{}, timeoutsDiffer bool) {
	m.Lock()
	defer m.Unlock()
	missing, extra := addrDifference(have, m.bound)
	addrs := slices.ContainsFunc(slices.Concat(missing, extra), func(a netip.Addr) bool { return !m.since.Has(lvs.Key{Addr: a}) })
	m.found.addrs, m.found.timeouts = m.found.addrs || addrs, m.found.timeouts || timeoutsDiffer
	m.differs = m.differs || addrs || timeoutsDiffer
}

// matches reports whether the kernel's s is as desired.
func (s *server) matches(want *server) bool {
	if s == nil || want == nil {
		return s == want
	}
	return s.Server == want.Server && slices.EqualFunc(s.dests, want.dests, isAs)
}
