package ipvs

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/netutil/lvs"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// Destinations whose connections are to be closed go at once, after what replaces them has
// come; the others drain.
func TestClosedDestinationsGo(t *testing.T) {
	key := lvs.Key{Addr: netip.MustParseAddr("10.96.0.1"), Protocol: uint8(source.TCP), Port: 80}
	one, two, three := netip.MustParseAddrPort("10.0.0.1:80"), netip.MustParseAddrPort("10.0.0.2:80"), netip.MustParseAddrPort("10.0.0.3:80")
	at := func(list ...netip.AddrPort) (out []policy.Target) {
		for _, a := range list {
			out = append(out, policy.NewTarget(a, 1))
		}
		return out
	}
	list := func(l ...netip.AddrPort) []netip.AddrPort { return l }
	before := &policy.Pool{Targets: at(one, two)}
	for _, tt := range []struct {
		name     string
		old, new *policy.Pool // nil: no service
		draining bool         // one does since a minute
		want     string
	}{
		{name: "kept", old: before, new: &policy.Pool{Targets: at(two), Kept: list(one)}, want: "change 1 to 0"},
		{name: "closed", old: before, new: &policy.Pool{Targets: at(two), Closed: list(one)}, want: "remove 1"},
		{name: "closed, and another comes", old: before, new: &policy.Pool{Targets: at(two, three), Closed: list(one)}, want: "add 3, remove 1"},
		{name: "the last is closed", old: &policy.Pool{Targets: at(one)}, new: &policy.Pool{Closed: list(one)}, want: "remove 1"},
		{name: "kept, then closed", old: &policy.Pool{Targets: at(two), Kept: list(one)}, new: &policy.Pool{Targets: at(two), Closed: list(one)}, want: "remove 1"},
		{name: "closed, then back", old: &policy.Pool{Targets: at(two), Closed: list(one)}, new: before, want: "add 1"},
		{name: "removed", old: before, new: &policy.Pool{Targets: at(two)}, want: "change 1 to 0"},
		{name: "removed, always", old: before, new: &policy.Pool{Targets: at(two), CloseRemoved: true}, want: "remove 1"},
		{name: "drains, and then it is to be closed", old: &policy.Pool{Targets: at(two)}, new: &policy.Pool{Targets: at(two), CloseRemoved: true}, draining: true, want: "remove 1"},
		{name: "the service goes", old: before, want: "change 1 to 0, change 2 to 0"},
		{name: "the service goes, always", old: &policy.Pool{Targets: at(one, two), CloseRemoved: true}, want: "remove server"},
		{name: "weight 0, always", old: before, new: &policy.Pool{Targets: at(two), Kept: list(one), CloseRemoved: true}, want: "change 1 to 0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			server := func(p *policy.Pool) *server {
				if p == nil {
					return nil
				}
				f := &policy.Frontend{Key: policy.FrontendKey{Addr: key.Addr, Protocol: source.TCP, Port: key.Port}}
				if f.Outside.Pool = p; len(p.Targets) == 0 {
					f.Outside.Action = policy.Reject
				}
				c := frontendPairs{by: map[lvs.Key]frontendPair{}}
				c.put(f, f, nil)
				return c.server(key, "wrr", map[*policy.Pool][]lvs.Destination{})
			}
			now := time.Now()
			d := difference{now: now, timeout: time.Hour, drains: drains{}}
			have := server(tt.old)
			if tt.draining {
				d.drains[key] = map[netip.AddrPort]time.Time{one: now.Add(-time.Minute)}
				have.dests = slices.Insert(have.dests, 0, lvs.Destination{AddrPort: one, Busy: true})
			}
			after := d.server(key, have, server(tt.new))
			if got := stepsText(append(d.first, d.last...)); got != tt.want {
				t.Errorf("steps: %s, want %s", got, tt.want)
			}
			if again := (&difference{now: now, timeout: time.Hour, drains: drains{}}); after != nil {
				again.server(key, after, server(tt.new))
				if steps := append(again.first, again.last...); len(steps) > 0 {
					t.Errorf("and once more: %s", stepsText(steps))
				}
			}
		})
	}
}

// stepsText returns steps in few words: a destination is the last byte of its address.
func stepsText(steps []step) string {
	var words []string
	for _, s := range steps {
		n := 0
		if s.dest.Addr().IsValid() {
			n = int(s.dest.Addr().As4()[3])
		}
		switch s.op {
		case addDest:
			words = append(words, fmt.Sprintf("add %d", n))
		case updateDest:
			words = append(words, fmt.Sprintf("change %d to %d", n, s.dest.Weight))
		case deleteDest:
			words = append(words, fmt.Sprintf("remove %d", n))
		case deleteServer:
			words = append(words, "remove server")
		default:
			words = append(words, fmt.Sprintf("op %d", s.op))
		}
	}
	return strings.Join(words, ", ")
}

// A comparison with the kernel knows what the former services said; leaving the mode closes nothing.
func TestComparisonKnowsWhichFormerServicesClose(t *testing.T) {
	key := lvs.Key{Addr: netip.MustParseAddr("10.96.0.1"), Protocol: uint8(source.TCP), Port: 80}
	for _, closes := range []bool{false, true} {
		p := &snapshot{had: map[lvs.Key]*server{key: {}}}
		p.remember(map[lvs.Key]*server{key: {closeRemoved: closes}, {}: {}})
		if got := p.had[key].closes(netip.MustParseAddrPort("10.0.0.1:80")); got != closes {
			t.Errorf("closes: %v, want %v", got, closes)
		}
	}
}

// A step of a slow start is one message for each virtual server, and moves nothing else.
func TestSlowStartStep(t *testing.T) {
	svc := &source.Service{
		Key: source.Key{Namespace: "default", Name: "web"}, VIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")},
		Ports: []source.Port{{Protocol: source.TCP, Port: 80, TargetPort: 8080}}, SlowStart: time.Minute,
	}
	for i := range 100 {
		a := netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})
		svc.Endpoints = append(svc.Endpoints, source.Endpoint{Addr: a, Weight: 10, Ready: true, Serving: true})
	}
	key := lvs.Key{Addr: svc.VIPs[0], Protocol: uint8(source.TCP), Port: 80}
	at := func(share uint8) *server {
		known := policy.Conditions{svc.EndpointAt(&svc.Endpoints[7]): {Share: share}}
		res := policy.Resolve(svc, known, &policy.Node{}, policy.IPv4)
		c := newFrontendPairs(&policy.State{Services: map[source.Key]*policy.Resolved{svc.Key: res}})
		return c.server(key, "wrr", map[*policy.Pool][]lvs.Destination{})
	}
	have := at(1)
	for share := uint8(2); share <= 10; share++ {
		d := &difference{now: time.Now(), drains: drains{}}
		have = d.server(key, have, at(share%10)) // 0: all of it
		if got, want := stepsText(append(d.first, d.last...)), fmt.Sprintf("change 7 to %d", 10*int(share)); got != want {
			t.Errorf("at %d tenths: %s, want %s", share, got, want)
		}
	}
}
