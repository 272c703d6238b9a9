package ipvs

import (
	"context"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"svcproxy.dev/svcproxy/netutil/lvs"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

func mirrorKey(n int) lvs.Key {
	return lvs.Key{Addr: netip.AddrFrom4([4]byte{10, 96, byte(n >> 8), byte(n)}), Protocol: uint8(source.TCP), Port: 80}
}

// weighing returns a server whose one destination has that weight.
func weighing(n int, weight uint32) *server {
	return &server{
		Server: lvs.Server{Key: mirrorKey(n), Scheduler: "wrr"},
		dests:  []lvs.Destination{{AddrPort: netip.MustParseAddrPort("10.0.0.1:80"), Weight: weight}},
	}
}

// mirrored returns a mirror of so many servers, of weight 1, and what it mirrors.
func mirrored(n int) (*mirror, map[lvs.Key]*server, map[netip.Addr]struct{}) {
	servers, bound := map[lvs.Key]*server{}, map[netip.Addr]struct{}{}
	for i := range n {
		servers[mirrorKey(i)] = weighing(i, 1)
		bound[mirrorKey(i).Addr] = struct{}{}
	}
	m := &mirror{}
	m.end(servers, bound, nil)
	return m, servers, bound
}

func keySet(numbers ...int) map[lvs.Key]struct{} {
	set := map[lvs.Key]struct{}{}
	for _, n := range numbers {
		set[mirrorKey(n)] = struct{}{}
	}
	return set
}

// What differs is found, and handed to the next Sync, once.
func TestLookFindsWhatDiffers(t *testing.T) {
	odd := weighing(1, 1)
	odd.dests[0].ForeignOptions = true
	other := weighing(1, 1)
	other.Scheduler = "rr"
	way := weighing(1, 1)
	way.dests[0].Forwarding = lvs.Forwarding{Method: lvs.Direct}
	tests := []struct {
		name string
		have *server
		want bool
	}{
		{"as it was", weighing(1, 1), false},
		{"gone", nil, true},
		{"another weight", weighing(1, 2), true},
		{"a destination of other options", odd, true},
		{"another way to a destination", way, true},
		{"without destinations", &server{Server: weighing(1, 1).Server}, true},
		{"another scheduler", other, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m, servers, _ := mirrored(3)
			if keys, _, known := m.beginLook(); !known || len(keys) != len(servers) {
				t.Fatalf("keys %v, known %v", keys, known)
			}
			m.compare(mirrorKey(1), tt.have)
			if got := m.endLook(); got != tt.want || m.unrepaired() != tt.want {
				t.Errorf("it differs: %v, and is to be repaired: %v, want %v", got, m.unrepaired(), tt.want)
			}
			touched := keySet(2)
			f := m.begin(touched, &policy.Delta{})
			if _, got := f.servers[mirrorKey(1)]; got != tt.want || (len(touched) == 2) != tt.want || m.unrepaired() {
				t.Errorf("the Sync repairs %v, touches %v", f.servers, touched)
			}
		})
	}
}

func TestLookFindsAddresses(t *testing.T) {
	for what, change := range map[string]func(map[netip.Addr]struct{}){
		"missing":           func(have map[netip.Addr]struct{}) { delete(have, mirrorKey(1).Addr) },
		"extra":             func(have map[netip.Addr]struct{}) { have[netip.MustParseAddr("10.96.9.9")] = struct{}{} },
		"missing by a Sync": func(have map[netip.Addr]struct{}) { delete(have, mirrorKey(2).Addr) },
	} {
		m, _, bound := mirrored(3)
		have := maps.Clone(bound)
		change(have)
		m.beginLook()
		m.begin(keySet(2), &policy.Delta{})
		m.compareRest(have, false)
		want := what != "missing by a Sync"
		if got := m.endLook(); got != want || m.begin(keySet(), &policy.Delta{}).addrs != want {
			t.Errorf("%s: found %v, want %v", what, got, want)
		}
	}
}

// Nothing can be said of what a Sync has changed since a look began, or was
// changing then, nor of anything after a Sync that failed.
func TestLooksAreOvertaken(t *testing.T) {
	stale := weighing(1, 7)
	tests := []struct {
		name string
		run  func(m *mirror, look func())
		want bool
	}{
		{"by none", func(m *mirror, look func()) { look() }, true},
		{"by a Sync of another", func(m *mirror, look func()) { look(); m.begin(keySet(2), &policy.Delta{}) }, true},
		{"by a Sync that begins", func(m *mirror, look func()) { look(); m.begin(keySet(1), &policy.Delta{}) }, false},
		{"by a Sync under way", func(m *mirror, look func()) { m.begin(keySet(1), &policy.Delta{}); look() }, false},
		{"by a Sync that fails", func(m *mirror, look func()) { look(); m.forget() }, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m, _, _ := mirrored(3)
			tt.run(m, func() { m.beginLook() })
			m.compare(mirrorKey(1), stale)
			if got := m.endLook(); got != tt.want {
				t.Errorf("it differs: %v, want %v", got, tt.want)
			}
		})
	}
}

// Repairs of much go in chunks, so that changes wait for none but their own.
func TestRepairsGoInChunks(t *testing.T) {
	const servers = 2*maxRepairs + 10
	m, _, _ := mirrored(servers)
	m.beginLook()
	for i := range servers {
		m.compare(mirrorKey(i), nil)
	}
	m.endLook()
	var chunks []int
	for m.unrepaired() {
		chunks = append(chunks, len(m.begin(keySet(), &policy.Delta{}).servers))
	}
	if !slices.Equal(chunks, []int{maxRepairs, maxRepairs, 10}) {
		t.Errorf("chunks %v", chunks)
	}
}

// What a Sync changes anyway it repairs too: it must not trust what is known of it.
func TestChangesComeWithTheirRepairs(t *testing.T) {
	const servers = maxRepairs + 10
	m, _, _ := mirrored(servers)
	m.beginLook()
	for i := range servers {
		m.compare(mirrorKey(i), weighing(i, 7))
	}
	m.endLook()
	f := m.begin(keySet(servers-1), &policy.Delta{})
	if _, repaired := f.servers[mirrorKey(servers-1)]; !repaired || len(f.servers) != maxRepairs+1 {
		t.Errorf("repaired: %v, of %d", repaired, len(f.servers))
	}
}

// A server that a look has missed is not ours any more, whatever is there at the
// repair, what a later look sees there, and whichever Sync comes first.
func TestMissedServersAreNotOurs(t *testing.T) {
	stopped, cancel := context.WithCancel(t.Context()) // no test asks the kernel
	cancel()
	ends := map[string]func(*Backend){
		"repair":  func(b *Backend) { b.beginDelta(stopped, keySet(), &policy.Delta{}, &proxier.Failures{}) },
		"resync":  func(b *Backend) { b.forget(b.record) },
		"leaving": func(b *Backend) { b.Retire(stopped) },
	}
	for what, end := range ends {
		t.Run(what, func(t *testing.T) {
			b := mirroring(t, 3)
			for _, have := range []*server{nil, weighing(1, 7)} {
				b.mirror.beginLook()
				b.mirror.compare(mirrorKey(1), have)
				b.mirror.compare(mirrorKey(2), weighing(2, 7))
				b.mirror.endLook()
			}
			end(b)
			if b.record.owns(mirrorKey(1)) || !b.record.owns(mirrorKey(2)) {
				t.Errorf("recorded:\n%s", b.record.lines())
			}
		})
	}
}

// Nor is one that drained: what is there now is not removed, and the address goes.
func TestMissedServersThatDrainedLeaveNothing(t *testing.T) {
	b := mirroring(t, 2)
	key := mirrorKey(1)
	b.servers[key].orphan, b.orphans[key.Addr] = true, 1
	b.mirror.beginLook()
	b.mirror.compare(key, nil)
	b.mirror.endLook()
	stopped, cancel := context.WithCancel(t.Context())
	cancel()
	keys := keySet()
	b.beginDelta(stopped, keys, &policy.Delta{}, &proxier.Failures{})
	d := &difference{drains: b.record.drains}
	freed := b.compare(d, slices.Collect(maps.Keys(keys)), "", &policy.State{})
	if !slices.Equal(freed, []netip.Addr{key.Addr}) || len(d.first)+len(d.last) > 0 || b.servers[key] != nil {
		t.Errorf("freed %v, sent %v %v, there %v", freed, d.first, d.last, b.servers[key])
	}
}

// mirroring returns a Backend that has so many servers, and cannot do anything.
func mirroring(t *testing.T, n int) *Backend {
	b := &Backend{
		owner:    owner{record: open(t, "", here), conn: &lvs.Conn{}, refused: refused{}},
		holdings: holdings{claims: newFrontendPairs(&policy.State{}), orphans: map[netip.Addr]int{}},
	}
	_, b.servers, b.bound = mirrored(n)
	b.members = maps.Clone(b.bound)
	b.mirror.end(b.servers, b.bound, nil)
	for key := range b.servers {
		b.record.own(key)
	}
	return b
}

// Looks beside Syncs that change servers all the time find nothing where nobody
// else changes any.
func TestLooksBesideSyncsFindNothing(t *testing.T) {
	const servers, syncs = 20, 2000
	m, held, bound := mirrored(servers)
	var mu sync.Mutex
	kernel := maps.Clone(held)
	read := func(key lvs.Key) *server { mu.Lock(); defer mu.Unlock(); return kernel[key] }
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range syncs {
			n := rand.IntN(servers)
			m.begin(keySet(n), &policy.Delta{})
			mu.Lock()
			kernel[mirrorKey(n)] = weighing(n, rand.Uint32N(100))
			held[mirrorKey(n)] = kernel[mirrorKey(n)]
			mu.Unlock()
			m.end(held, bound, nil)
		}
	}()
	looks := 0
	for running := true; running; looks++ {
		select {
		case <-done:
			running = false
		default:
		}
		keys, _, _ := m.beginLook()
		for _, key := range keys {
			m.compare(key, read(key))
		}
		if m.endLook() {
			t.Fatalf("look %d found %v", looks, m.found.servers)
		}
	}
	t.Logf("%d looks", looks)
}

// A server that is missing says nothing while a Sync changes some, nor while others
// are to be repaired.
func TestMissingServerIsNoFindingDuringASync(t *testing.T) {
	m, servers, bound := mirrored(3)
	want := func(when string, want bool) {
		t.Helper()
		if key, known := m.pick(); known != want || known && servers[key] == nil {
			t.Errorf("%s: %v, %v", when, key, known)
		}
	}
	want("at rest", true)
	m.begin(keySet(1), &policy.Delta{})
	want("during a Sync", false)
	m.end(servers, bound, nil)
	want("after it", true)
	m.beginLook()
	m.compare(mirrorKey(1), nil)
	m.endLook()
	want("with something to repair", false)
	m.forget()
	want("when nothing is known", false)
}

// What Watch reported is no Sync's business by itself, until a Sync has taken it:
// what that leaves over goes on.
func TestReportedChangesWaitForASync(t *testing.T) {
	m, servers := mirror{}, map[lvs.Key]*server{}
	for n := range maxRepairs + 1 {
		servers[mirrorKey(n)] = &server{}
	}
	m.end(servers, nil, nil)
	m.beginLook()
	for key := range servers {
		m.compare(key, nil)
	}
	if !m.endLook() || !m.unrepaired() {
		t.Error("nothing is found, or nothing to be repaired")
	}
	if m.markReported(); m.unrepaired() || !m.reported() {
		t.Error("what was told of is to be repaired at once")
	}
	m.begin(map[lvs.Key]struct{}{}, &policy.Delta{})
	if !m.unrepaired() || m.reported() {
		t.Error("the rest is not to be repaired")
	}
}
