package ipvs

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"svcproxy.dev/svcproxy/netutil/lvs"
	"svcproxy.dev/svcproxy/proxier/backendtest"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// A kernel does what IPVS does: it refuses what it cannot do.
type kernel map[lvs.Key]map[netip.AddrPort]uint32

func (k kernel) do(s step) error {
	dests, there := k[s.key]
	_, has := dests[s.dest.AddrPort]
	switch {
	case s.op == addServer && there, s.op != addServer && !there:
		return fmt.Errorf("%v: server there: %v", s.change(), there)
	case s.op == addDest && has, (s.op == updateDest || s.op == deleteDest) && !has:
		return fmt.Errorf("%v: destination there: %v", s.change(), has)
	}
	switch s.op {
	case addServer:
		k[s.key] = map[netip.AddrPort]uint32{}
	case deleteServer:
		delete(k, s.key)
	case addDest, updateDest:
		dests[s.dest.AddrPort] = s.dest.Weight
	case deleteDest:
		delete(dests, s.dest.AddrPort)
	}
	return nil
}

// carry returns how many destinations take new connections.
func (k kernel) carry(key lvs.Key) (n int) {
	for _, w := range k[key] {
		if w > 0 {
			n++
		}
	}
	return n
}

func weights(s *server) map[netip.AddrPort]uint32 {
	if s == nil {
		return nil
	}
	m := map[netip.AddrPort]uint32{}
	for _, d := range s.dests {
		m[d.AddrPort] = d.Weight
	}
	return m
}

// drawServer returns a server with some of ten destinations, or none.
func drawServer(rt *rapid.T, key lvs.Key) *server {
	if rapid.IntRange(0, 3).Draw(rt, "none") == 0 {
		return nil
	}
	s := &server{
		Server:       lvs.Server{Key: key, Scheduler: rapid.SampledFrom([]string{"wrr", "sh"}).Draw(rt, "scheduler")},
		closeRemoved: rapid.IntRange(0, 3).Draw(rt, "closes") == 0,
	}
	for i := range 10 {
		if rapid.Bool().Draw(rt, "has") {
			at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 80)
			s.dests = append(s.dests, lvs.Destination{AddrPort: at, Weight: uint32(rapid.IntRange(0, 3).Draw(rt, "weight"))})
		}
	}
	return s
}

// Steps lead from anything to anything: what is wanted is there, what has left
// drains, UDP for a moment and where the server stays, and no moment is without destinations that need not be.
func TestStepsLeadToWhatIsWanted(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		proto := rapid.SampledFrom([]source.Protocol{source.TCP, source.UDP, source.SCTP}).Draw(rt, "protocol")
		key := lvs.Key{Addr: netip.MustParseAddr("10.96.0.1"), Protocol: uint8(proto), Port: 80}
		k, held, rec := kernel{}, (*server)(nil), newRecord()
		rec.own(key)
		now := time.Now()
		for range rapid.IntRange(1, 8).Draw(rt, "changes") {
			now = now.Add(time.Duration(rapid.IntRange(0, 30).Draw(rt, "seconds")) * time.Second)
			want := drawServer(rt, key)
			d := difference{now: now, timeout: 20 * time.Second, drains: rec.drains}
			before := k.carry(key)
			held = d.server(key, held, want)
			for _, c := range d.drained {
				rec.drained(c)
			}
			for i, s := range slices.Concat(d.first, d.last) {
				if err := k.do(s); err != nil {
					rt.Fatal(err)
				}
				if i < len(d.first) && k.carry(key) < before {
					rt.Fatalf("step %v takes destinations away before all new ones are there", s.change())
				}
			}
			if !maps.Equal(k[key], weights(held)) {
				rt.Fatalf("the kernel holds %v, not %v", k[key], weights(held))
			}
			checkHeld(rt, key, k[key], want, rec.drains[key], now)
			if want != nil && want.closeRemoved && len(k[key]) > len(want.dests) {
				rt.Fatalf("destinations drain, %v beside %v, where they are to be closed", k[key], weights(want))
			}
		}
	})
}

func checkHeld(rt *rapid.T, key lvs.Key, have map[netip.AddrPort]uint32, want *server, draining map[netip.AddrPort]time.Time, now time.Time) {
	wanted, atOnce := weights(want), want == nil && isDatagrams(key)
	for at, w := range wanted {
		if got, ok := have[at]; !ok || got != w {
			rt.Fatalf("destination %v has weight %d (there: %v), want %d", at, got, ok, w)
		}
	}
	for at, w := range have {
		if _, ok := wanted[at]; ok {
			continue
		}
		since, ok := draining[at]
		if w != 0 || !ok || atOnce || now.Sub(since) >= drainTime(key, 20*time.Second) {
			rt.Fatalf("destination %v of nobody: weight %d, drains %v since %v", at, w, ok, now.Sub(since))
		}
	}
	for at := range draining {
		if w, ok := have[at]; !ok || w != 0 {
			rt.Fatalf("destination %v is said to drain, and has weight %d (there: %v)", at, w, ok)
		}
	}
}

func TestIdleDestinationsGoAfterAWhile(t *testing.T) {
	key := lvs.Key{Addr: netip.MustParseAddr("10.96.0.1"), Protocol: uint8(source.TCP), Port: 80}
	at := netip.MustParseAddrPort("10.0.0.1:80")
	start := time.Now()
	tests := []struct {
		name   string
		after  time.Duration
		idle   bool
		stays  bool
		marked bool // it drained before
	}{
		{"just left", 0, true, true, false},
		{"idle, but the counters may lag", counterLag - time.Millisecond, true, true, true},
		{"idle", counterLag, true, false, true},
		{"in use", time.Minute, false, true, true},
		{"in use for too long", time.Hour, false, false, true},
		{"left in the future: the clock was set", -time.Hour, false, true, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := difference{now: start.Add(tt.after), timeout: time.Hour, drains: drains{}}
			if tt.marked {
				d.drains[key] = map[netip.AddrPort]time.Time{at: start}
			}
			have := &server{Server: lvs.Server{Key: key}, dests: []lvs.Destination{{AddrPort: at, Busy: !tt.idle}}}
			if left := d.server(key, have, nil); (left != nil) != tt.stays {
				t.Errorf("left %+v, steps %v", left, d.last)
			}
		})
	}
}

// Claims follow deltas to what a State by itself gives.
func TestClaimsFollowDeltas(t *testing.T) {
	for _, fam := range []policy.Family{policy.IPv4, policy.IPv6} {
		rapid.Check(t, func(rt *rapid.T) {
			pick := func(n int) int { return rapid.IntRange(0, n-1).Draw(rt, "pick") }
			w := backendtest.NewWorld(fam)
			got := newFrontendPairs(w.State)
			for range pick(20) {
				n := pick(8)
				key := source.Key{Namespace: "default", Name: fmt.Sprintf("svc-%d", n)}
				var res *policy.Resolved
				if pick(3) > 0 {
					res = w.Random(pick, n)
				}
				got.update(w.Put(key, res))
			}
			if want := newFrontendPairs(w.State); !maps.Equal(want.by, got.by) {
				rt.Fatalf("claims by deltas %v, by a State %v", got.by, want.by)
			}
		})
	}
}
