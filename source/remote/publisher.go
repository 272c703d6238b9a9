package remote

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"svcproxy.dev/svcproxy/source"
)

// MoveTime is how long a service stays as it was when it no longer has an endpoint
// that was ready: it may be about to appear in another object of the service. One that
// ends is not ready first, so that this delays nothing that is in order.
const MoveTime = 300 * time.Millisecond

// A Publisher hands services on to a sink, each as one unit that may be used in part.
// It belongs to one goroutine.
type Publisher struct {
	state *State
	sink  source.Sink

	dirty map[source.Key]bool      // to be looked at; true: as soon as possible
	due   map[source.Key]time.Time // those that wait
	next  source.Changes
}

// A Handed is one service as it was handed on. The zero Handed: none was.
type Handed struct {
	Since   int64           `json:"created"` // ns since 1970; 0: not known
	Service *source.Service `json:"service"`

	Changed []time.Time `json:"-"` // for source.Unit
}

// NewPublisher returns one that has handed on nothing.
func NewPublisher(state *State, sink source.Sink) *Publisher {
	return &Publisher{state: state, sink: sink, dirty: map[source.Key]bool{}, due: map[source.Key]time.Time{}}
}

// Touch has a service looked at; now: at once, though it may lose endpoints.
func (p *Publisher) Touch(key source.Key, now bool) { p.dirty[key] = p.dirty[key] || now }

// Dirty returns the services to be looked at, and which of them at once.
func (p *Publisher) Dirty(now time.Time) map[source.Key]bool {
	for key, due := range p.due {
		if !now.Before(due) {
			p.dirty[key] = true
		}
	}
	dirty := p.dirty
	p.dirty = map[source.Key]bool{} // not cleared: that costs what the first list took, each time
	return dirty
}

// Set hands on a service in place of what was handed on before. It reports whether it did:
// one that is the same, has faults or may be about to get endpoints back stays as it was.
func (p *Publisher) Set(had *Handed, next Handed, unused []source.Fault, now time.Time, atOnce bool) bool {
	key := next.Service.Key
	if had.Service != nil && !atOnce && loses(had.Service.Endpoints, next.Service.Endpoints) {
		if _, waits := p.due[key]; !waits {
			p.due[key] = now.Add(MoveTime)
		}
		return false
	}
	delete(p.due, key)
	faults := faultsOf(next.Service)
	p.state.record(key, had.Service != nil, slices.Concat(faults, unused))
	if len(faults) > 0 || had.Service != nil && had.Since == next.Since && had.Service.Equal(next.Service) {
		return false
	}
	p.Put(had, next)
	return true
}

// Put hands on a service as it is.
func (p *Publisher) Put(had *Handed, next Handed) {
	*had = Handed{Since: next.Since, Service: next.Service}
	id := source.UnitID{Source: p.state.name, Name: next.Service.Key.String()}
	p.next.Set = append(p.next.Set, source.Unit{ID: id, Partial: true, Since: next.Since, Services: []*source.Service{next.Service}, Changed: next.Changed})
}

// Remove takes away what was handed on of a service that is gone.
func (p *Publisher) Remove(key source.Key, had *Handed) {
	delete(p.due, key)
	p.state.record(key, false, nil)
	if had.Service != nil {
		had.Service = nil
		p.next.Delete = append(p.next.Delete, source.UnitID{Source: p.state.name, Name: key.String()})
	}
}

// Flush applies, in one step, what was handed on since the last one, and returns it.
func (p *Publisher) Flush() (set, deleted int) {
	ch := p.next
	p.next = source.Changes{}
	if len(ch.Set)+len(ch.Delete) > 0 {
		p.sink.Apply(ch)
	}
	return len(ch.Set), len(ch.Delete)
}

// Synced says that all that existed was handed on.
func (p *Publisher) Synced() { p.sink.Synced(p.state.name) }

// Due returns when the first that waits need wait no longer.
func (p *Publisher) Due() (next time.Time, some bool) {
	for _, due := range p.due {
		if !some || due.Before(next) {
			next, some = due, true
		}
	}
	return next, some
}

// faultsOf returns what is wrong with a service. Warnings are for those who write
// files: a server has its own rules.
func faultsOf(s *source.Service) []source.Fault {
	var out []source.Fault
	for _, p := range source.Validate(s) {
		if !p.Warning {
			out = append(out, source.Fault{Msg: fmt.Sprintf("service %q: %s", s.Key, p.Msg)})
		}
	}
	return out
}

// loses reports whether now lacks an address that was ready in before. One that
// was not is on its way out already.
func loses(before, now []source.Endpoint) bool {
	for i := range before {
		e := &before[i]
		if !e.Ready {
			continue
		}
		_, found := slices.BinarySearchFunc(now, e.Addr, func(o source.Endpoint, a netip.Addr) int { return o.Addr.Compare(a) })
		if !found {
			return true
		}
	}
	return false
}
