package history

import (
	"net/netip"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/test/lab"
	"svcproxy.dev/svcproxy/test/policy"
)

var (
	clientAddr = netip.MustParseAddr("10.1.0.10")
	first      = netip.MustParseAddr("10.4.0.1")
	second     = netip.MustParseAddr("10.4.0.2")
	vip        = netip.MustParseAddrPort("10.96.1.0:80")
	base       = time.Unix(1e9, 0)
)

// at is a moment of the histories below.
func at(seconds float64) time.Time { return base.Add(time.Duration(seconds * float64(time.Second))) }

// serving is a version of the service with endpoints.
func serving(addrs ...netip.Addr) *source.Service {
	s := &source.Service{
		Key: source.Key{Namespace: "default", Name: "svc"}, VIPs: []netip.Addr{vip.Addr()},
		Ports: []source.Port{{Protocol: source.TCP, Port: 80, TargetPort: 8080}, {Protocol: source.UDP, Port: 80, TargetPort: 8080}},
	}
	for _, a := range addrs {
		s.Endpoints = append(s.Endpoints, source.Endpoint{Addr: a, Ready: true, Serving: true, Weight: 1})
	}
	return s
}

// with returns a version that a function changed.
func with(s *source.Service, change func(*source.Service)) *source.Service { change(s); return s }

// then gives a fact another value, whose change took a moment.
func then[T any](f *Fact[T], when float64, is T) {
	f.values = append(f.values, value[T]{is: is, from: at(when), done: at(when + 0.01)})
}

// newHistory has one service, whose first version counts from the beginning.
func newHistory(first0 *source.Service) *History {
	h := &History{
		Host:     NewFact(policy.Host{Name: "node"}),
		Services: map[string]*Fact[*source.Service]{"svc": NewFact(first0)},
		Hosts:    map[netip.Addr]*Endpoint{},
	}
	for _, a := range []netip.Addr{first, second} {
		h.Hosts[a] = &Endpoint{NewFact(true), NewFact(false)}
	}
	return h
}

// try is an attempt at a time.
func try(when float64, got lab.Outcome, by netip.Addr) Attempt {
	a := Attempt{Service: "svc", Packet: policy.Packet{Protocol: source.TCP, From: clientAddr, To: vip, Interface: "front"}, Start: at(when), End: at(when + 0.005)}
	a.Got = lab.Answer{Outcome: got}
	if got == lab.Answered {
		a.By, a.Got.Port = by, 8080
	}
	return a
}

// What the judge finds illegal, and what it does not.
func TestJudge(t *testing.T) {
	none := netip.Addr{}
	from := func(port uint16, a Attempt) Attempt {
		a.Port = port
		return a
	}
	died := func(from, until float64, by netip.Addr) Attempt {
		a := try(from, lab.Broken, none)
		a.Died, a.By, a.End = true, by, at(until)
		return a
	}
	udp := func(a Attempt) Attempt { a.Packet.Protocol = source.UDP; return a }
	flow := func(a Attempt) Attempt { a.Flow = true; return udp(a) }
	own := func(a Attempt) Attempt { a.Own = true; return a }
	leaves := func(h *History) { then(h.Services["svc"], 10, serving(second)) }
	dies := func(h *History) { then(h.Hosts[first].Alive, 10, false) }
	drains := func(h *History) { then(h.Hosts[first].Drained, 10, true) }
	checked := with(serving(first, second), func(s *source.Service) { s.HealthCheck = &source.HealthCheck{} })
	sticky := with(serving(first, second), func(s *source.Service) { s.Affinity = time.Hour })
	tests := []struct {
		name     string
		service  *source.Service // nil: with both endpoints
		happens  func(*History)
		attempts []Attempt
		illegal  int
	}{
		{name: "at an endpoint", attempts: []Attempt{try(1, lab.Answered, first), try(1, lab.Answered, second)}},
		{name: "at nobody's", attempts: []Attempt{try(1, lab.Answered, netip.MustParseAddr("10.4.0.3"))}, illegal: 1},
		{name: "not masqueraded", attempts: []Attempt{own(try(1, lab.Answered, first))}, illegal: 1},
		{name: "not masqueraded, as before from this source port",
			attempts: []Attempt{own(from(9, try(1, lab.Answered, first))), own(from(9, try(1.5, lab.Answered, second))), own(from(8, try(2, lab.Answered, first)))}, illegal: 2,
			happens: func(h *History) { h.before = []Attempt{own(from(9, try(-60, lab.Answered, first)))} }},
		{name: "refused, dropped, untouched", attempts: []Attempt{try(1, lab.Refused, none), try(1, lab.Dropped, none), try(1, lab.Untouched, none)}, illegal: 3},
		{name: "without a service", happens: func(h *History) { h.Services["svc"] = NewFact[*source.Service](nil) },
			attempts: []Attempt{try(1, lab.Untouched, none), try(1, lab.Refused, none)}, illegal: 1},
		{name: "a service comes back", happens: func(h *History) {
			then(h.Services["svc"], 5, nil)
			then(h.Services["svc"], 10, serving(first, second))
		}, attempts: []Attempt{flow(try(10.5, lab.Refused, none)), try(10.5, lab.Refused, none), flow(try(20, lab.Refused, none))}, illegal: 2},
		{name: "an answer of who had the address before", attempts: []Attempt{try(9, lab.Dropped, none), try(10.5, lab.Dropped, none), try(12, lab.Dropped, none), try(12, lab.Refused, none)}, illegal: 2,
			happens: func(h *History) {
				h.Services["svc"] = NewFact[*source.Service](nil)
				then(h.Host, 10, policy.Host{Name: "node", Addresses: []policy.Address{{Addr: vip.Addr()}}})
			}},
		{name: "without endpoints", service: serving(), attempts: []Attempt{try(1, lab.Refused, none), try(1, lab.Untouched, none)}, illegal: 1},
		{name: "after it left", happens: leaves, attempts: []Attempt{try(9, lab.Answered, first), try(10.5, lab.Answered, first), try(11.5, lab.Answered, first)}, illegal: 1},
		{name: "after it left, svcproxy frozen", attempts: []Attempt{try(12.5, lab.Answered, first), try(14, lab.Answered, first)}, illegal: 1,
			happens: func(h *History) { leaves(h); h.Clock.Lost(Span{at(10.5), at(12)}) }},
		{name: "after it left, a busy machine", attempts: []Attempt{try(11.5, lab.Answered, first), try(13.5, lab.Answered, first)}, illegal: 1,
			happens: func(h *History) { leaves(h); h.Clock.loads = []load{{at(10), 3}, {at(13), 1}} }},
		{name: "after it left, a machine that is too busy", attempts: []Attempt{try(13.5, lab.Answered, first), try(18, lab.Answered, first)}, illegal: 1,
			happens: func(h *History) { leaves(h); h.Clock.loads = []load{{at(9), 12}, {at(14), 1}} }},
		{name: "no answer while the machine stood still", attempts: []Attempt{try(10, lab.Dropped, none), try(10, lab.Refused, none), try(13, lab.Dropped, none)}, illegal: 2,
			happens: func(h *History) { h.Clock.Lost(Span{at(9.9), at(12)}) }},
		{name: "no answer while svcproxy was frozen", attempts: []Attempt{try(10, lab.Dropped, none)}, illegal: 1,
			happens: func(h *History) { h.Clock.spans = []Span{{at(9.9), at(12)}} }},
		{name: "before it came", service: serving(first), attempts: []Attempt{try(9.9, lab.Answered, second), try(10.001, lab.Answered, second)}, illegal: 1,
			happens: func(h *History) { then(h.Services["svc"], 10, serving(first, second)) }},
		{name: "in steps, endpoints of one and sources of the other", illegal: 2,
			attempts: []Attempt{try(9.9, lab.Answered, second), try(10.3, lab.Answered, second), try(10.3, lab.Dropped, none), try(12, lab.Dropped, none)},
			service:  with(serving(second), func(s *source.Service) { s.SourceRanges = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")} }),
			happens:  func(h *History) { h.Steps = true; then(h.Services["svc"], 10, serving(first)) }},
		{name: "in steps, removed", attempts: []Attempt{try(10.3, lab.Refused, none), try(12, lab.Refused, none)}, illegal: 1,
			happens: func(h *History) { h.Steps = true; then(h.Services["svc"], 10, nil) }},
		{name: "a change that failed", attempts: []Attempt{try(20, lab.Answered, first), try(30, lab.Answered, first)}, illegal: 1,
			happens: func(h *History) {
				leaves(h)
				h.Services["svc"].values[1].done = at(1e6)
				then(h.Services["svc"], 22, serving(second))
			}},
		{name: "while it is broken", attempts: []Attempt{try(5, lab.Untouched, none), try(6.5, lab.Untouched, none), try(8, lab.Untouched, none)}, illegal: 1,
			happens: func(h *History) { h.damages = []*Span{{at(4), at(6)}} }},
		{name: "while it is broken unseen", attempts: []Attempt{try(8, lab.Untouched, none), try(13, lab.Untouched, none)}, illegal: 1,
			happens: func(h *History) { h.Unseen, h.damages = 5*time.Second, []*Span{{at(4), at(6)}} }},
		{name: "dead, without a check", happens: dies, attempts: []Attempt{try(11, lab.Refused, none), try(19, lab.Refused, none), try(19, lab.Answered, second)}},
		{name: "dead, with a check", service: checked, happens: dies, attempts: []Attempt{try(11, lab.Refused, none), try(19, lab.Refused, none)}, illegal: 1},
		{name: "dead, with a check, after a change that took long", attempts: []Attempt{try(16.5, lab.Refused, none), try(18, lab.Refused, none)}, illegal: 1,
			service: with(serving(first), func(s *source.Service) { s.HealthCheck = &source.HealthCheck{} }),
			happens: func(h *History) {
				h.Hosts[second].Alive = NewFact(false)
				then(h.Services["svc"], 10, checked)
				h.Services["svc"].values[1].done = at(15)
			}},
		{name: "after it left, from a store", attempts: []Attempt{try(11.5, lab.Answered, first), try(13, lab.Answered, first)}, illegal: 1,
			happens: func(h *History) { leaves(h); h.Services["svc"].values[1].takes = time.Second }},
		{name: "answered by the dead", happens: dies, attempts: []Attempt{try(19, lab.Answered, first)}, illegal: 1},
		{name: "drained", happens: drains, attempts: []Attempt{try(10.5, lab.Answered, first), try(12, lab.Answered, first), flow(try(12, lab.Answered, first))}, illegal: 1},
		{name: "a flow after its endpoint left", happens: leaves, attempts: []Attempt{flow(try(11.5, lab.Answered, first)), flow(try(12.5, lab.Answered, first))}, illegal: 1},
		{name: "a flow that began before others were masqueraded", attempts: []Attempt{own(flow(try(1, lab.Answered, first)))}},
		{name: "a flow to an endpoint that others are nearer than", attempts: []Attempt{flow(try(1, lab.Answered, second)), try(1, lab.Answered, second)}, illegal: 1,
			service: with(serving(first, second), func(s *source.Service) {
				s.TrafficDistribution, s.Endpoints[0] = source.PreferSameNode, s.Endpoints[0].With(source.Extras{Node: "node"})
			})},
		{name: "a flow to a weight of 0", attempts: []Attempt{flow(try(1, lab.Refused, none)), flow(try(1, lab.Answered, first))},
			service: with(serving(first), func(s *source.Service) { s.Endpoints[0].Weight = 0 })},
		{name: "affinity", service: sticky, attempts: []Attempt{try(1, lab.Answered, first), try(2, lab.Answered, first), try(3, lab.Answered, second)}, illegal: 1},
		{name: "affinity, and a port that is remembered", service: sticky, attempts: []Attempt{from(7, flow(try(1, lab.Answered, second))), udp(try(2, lab.Answered, first)),
			from(7, udp(try(3, lab.Answered, second))), udp(try(4, lab.Answered, first)), from(8, udp(try(5, lab.Answered, second)))}, illegal: 1},
		{name: "affinity, and a port of an earlier episode", service: sticky, illegal: 1,
			attempts: []Attempt{try(1, lab.Answered, first), from(9, try(2, lab.Answered, second)), try(3, lab.Answered, first), from(8, try(4, lab.Answered, second))},
			happens:  func(h *History) { h.before = []Attempt{from(9, try(-60, lab.Answered, second))} }},
		{name: "affinity, and the mode changed in between", service: sticky, illegal: 1,
			attempts: []Attempt{try(1, lab.Answered, first), try(20, lab.Answered, second), try(30, lab.Answered, first)},
			happens:  func(h *History) { h.changes = []Span{{at(10), at(11)}} }},
		{name: "a mode that changes, and a service that is removed", attempts: []Attempt{try(10.3, lab.Refused, none), try(30.3, lab.Refused, none)}, illegal: 1,
			happens: func(h *History) {
				h.changes = []Span{{at(10), at(11)}}
				f := h.Services["svc"]
				then(f, 10, nil)
				then(f, 20, serving(first, second))
				then(f, 30, nil)
			}},
		{name: "affinity, and its endpoint left", service: sticky, attempts: []Attempt{try(1, lab.Answered, first), try(12, lab.Answered, second)},
			happens: func(h *History) {
				then(h.Services["svc"], 10, with(serving(second), func(s *source.Service) { s.Affinity = time.Hour }))
			}},
		{name: "established, and virtual servers are removed", attempts: []Attempt{died(1, 20, first), died(1, 40, first)}, illegal: 1,
			happens: func(h *History) { h.cuts = []time.Time{at(19)} }},
		{name: "established, its endpoint stays", attempts: []Attempt{died(1, 20, second)}, happens: leaves, illegal: 1},
		{name: "established, its endpoint leaves", attempts: []Attempt{died(1, 20, first)}, happens: leaves},
		{name: "established, its endpoint dies", attempts: []Attempt{died(1, 20, first), died(1, 9, first)}, happens: dies, illegal: 1},
		{name: "established, beside damage", attempts: []Attempt{died(1, 20, first)}, illegal: 1,
			happens: func(h *History) { h.damages = []*Span{{at(4), at(6)}} }},
		{name: "established, beside damage that svcproxy does not live to repair", attempts: []Attempt{died(1, 6.6, first), died(1, 5, first), died(1, 20, first)}, illegal: 2,
			happens: func(h *History) { h.damages, h.ends = []*Span{{at(4), at(6)}}, []time.Time{at(6.5)} }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			svc := tt.service
			if svc == nil {
				svc = serving(first, second)
			}
			h := newHistory(svc)
			if tt.happens != nil {
				tt.happens(h)
			}
			h.attempts = tt.attempts
			if errs := NewJudge(h).Illegal(); len(errs) != tt.illegal {
				t.Errorf("%d illegal: %v; want %d", len(errs), errs, tt.illegal)
			}
		})
	}
}
