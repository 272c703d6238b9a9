package history

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/test/lab"
	"svcproxy.dev/svcproxy/test/policy"
)

// A Judge knows when each fact of a history may have counted.
type Judge struct {
	h        *History
	host     []period[policy.Host]
	services map[string][]period[*source.Service]
	alive    map[netip.Addr][]period[bool]
	drained  map[netip.Addr][]period[bool]
	checked  map[netip.Addr][]period[bool] // alive, as checks know it
	damages  []Span
	changes  []Span // of the mode, with the time that svcproxy has for them

	// How many attempts were compared; had too many worlds; were made while the machine was too busy.
	Judged, Unjudged, Busy int
}

// NewJudge returns a judge of a history that is over.
func NewJudge(h *History) *Judge {
	j := &Judge{
		h: h, host: h.Host.periods(&h.Clock), services: map[string][]period[*source.Service]{},
		alive: map[netip.Addr][]period[bool]{}, drained: map[netip.Addr][]period[bool]{}, checked: map[netip.Addr][]period[bool]{},
	}
	for name, f := range h.Services {
		j.services[name] = f.periods(&h.Clock)
	}
	for a, e := range h.Hosts {
		j.alive[a], j.checked[a] = e.Alive.periods(&h.Clock), e.Alive.periods(&h.Clock)
		j.drained[a] = e.Drained.periods(&h.Clock)
	}
	for _, d := range h.damages {
		if d == nil {
			continue
		}
		span := *d
		if !span.Until.IsZero() {
			span.Until = h.Clock.Settled(span.Until, h.Unseen+reaction)
		}
		j.damages = append(j.damages, span)
	}
	for _, c := range h.changes {
		if !c.Until.IsZero() {
			c.Until = h.Clock.Settled(c.Until, anotherMode)
		}
		j.changes = append(j.changes, c)
	}
	return j
}

// Illegal returns the attempts that met what nothing allowed, each with what was.
func (j *Judge) Illegal() (errs []error) {
	for i := range j.h.attempts {
		if err := j.judge(&j.h.attempts[i]); err != nil {
			errs = append(errs, err)
		}
	}
	return append(errs, j.unsteady()...)
}

// judge returns why an attempt was illegal. What svcproxy did some seconds before may be the reason for what it met,
// so the machine must have had time for svcproxy since then. A client without an answer while the machine stood still
// does not know whether an answer would have come.
func (j *Judge) judge(a *Attempt) error {
	clock := &j.h.Clock
	if clock.TooBusy(a.Start.Add(-mostLoad*reaction), a.End) || a.Got.Outcome == lab.Dropped && clock.StoodStill(a.Start, a.End) {
		j.Busy++
		return nil
	}
	if j.damaged(a.Start, a.End) && !a.Died {
		return nil // a connection that was established lives on, whatever others break
	}
	if a.Died {
		return j.judgeDeath(a)
	}
	begin := a.Start
	if a.Flow {
		begin = begin.Add(-flowGrace)
	}
	legal, found := policy.Outcomes{}, false
	few := j.worlds(a.Service, begin, a.End, func(w *policy.World) bool {
		of := policy.Legal(w, a.Packet)
		if a.Flow {
			maps.Copy(of, policy.Legal(kept(w), a.Packet))
		}
		maps.Copy(legal, of)
		found = j.allows(of, a)
		return !found
	})
	switch {
	case found:
		j.Judged++
		return nil
	case !few:
		j.Unjudged++
		return nil
	}
	j.Judged++
	return fmt.Errorf("%s\n\tallowed were: %s", a, describe(legal))
}

// flowGrace is how long a flow may stay with an endpoint that lives, but gets no new ones.
const flowGrace = time.Second

// kept is a world as flows see it that go on: they stay with endpoints that are drained, disabled, not ready but serving,
// of weight 0, of a tier that is not needed, or farther away than others.
func kept(w *policy.World) *policy.World {
	out := *w
	out.Known, out.Services = map[source.Key]map[netip.AddrPort]policy.Known{}, nil
	for key, all := range w.Known {
		out.Known[key] = map[netip.AddrPort]policy.Known{}
		for at, k := range all {
			k.Drained = false
			out.Known[key][at] = k
		}
	}
	for _, s := range w.Services {
		clone := *s
		clone.Endpoints, clone.TrafficDistribution = slices.Clone(s.Endpoints), source.Evenly
		for i := range clone.Endpoints {
			e := &clone.Endpoints[i]
			e.Weight, e.Disabled, e.Tier, e.Ready = max(1, e.Weight), false, 0, e.Ready || e.Serving
		}
		out.Services = append(out.Services, &clone)
	}
	return &out
}

// judgeDeath returns why a connection should have lived: its endpoint could have new ones from the same client all the time.
func (j *Judge) judgeDeath(a *Attempt) error {
	if j.unheld(a) {
		return nil
	}
	usable, few := true, true
	for _, t := range append(j.moments(a), a.Start) {
		few = j.worlds(a.Service, t, t, func(w *policy.World) bool {
			at := slices.ContainsFunc(slices.Collect(maps.Keys(policy.Legal(w, a.Packet))), func(o policy.Outcome) bool {
				return o.Verdict == policy.Balanced && o.Endpoint.Addr() == a.By
			})
			usable = usable && at
			return usable
		}) && few
	}
	few = few && len(between(j.alive[a.By], a.Start, a.End)) > 0
	if slices.Contains(between(j.alive[a.By], a.Start, a.End), false) {
		usable = false
	}
	switch {
	case !few:
		j.Unjudged++
	case usable:
		return fmt.Errorf("%s\n\tit was at %s, which was usable all the time", a, a.By)
	default:
		j.Judged++
	}
	return nil
}

// unheld reports whether a connection may have ended because svcproxy was ended before it had repaired what others
// removed: then nothing keeps connection tracking on. Or because they removed the virtual servers.
func (j *Judge) unheld(a *Attempt) bool {
	during := func(t time.Time) bool {
		return a.Start.Before(t) && t.Before(a.End) && a.End.Before(j.h.Clock.Settled(t, reaction).Add(2*patience))
	}
	return slices.ContainsFunc(j.h.cuts, during) ||
		slices.ContainsFunc(j.h.ends, func(t time.Time) bool { return j.damaged(t, t) && during(t) })
}

// moments returns when something changed while a connection lived.
func (j *Judge) moments(a *Attempt) (list []time.Time) {
	note := func(s Span) {
		for _, t := range []time.Time{s.From, s.Until} {
			if t.After(a.Start) && t.Before(a.End) {
				list = append(list, t)
			}
		}
	}
	for _, p := range j.services[a.Service] {
		note(p.Span)
	}
	for _, p := range j.host {
		note(p.Span)
	}
	for _, all := range []map[netip.Addr][]period[bool]{j.alive, j.drained} {
		for _, list := range all {
			for _, p := range list {
				note(p.Span)
			}
		}
	}
	return append(list, a.End)
}

func (j *Judge) damaged(begin, end time.Time) bool {
	return overlap(j.damages, begin, end)
}

func overlap(spans []Span, begin, end time.Time) bool {
	return slices.ContainsFunc(spans, func(s Span) bool { return s.overlaps(begin, end) })
}

// allows reports whether what came of an attempt is one of some outcomes. An endpoint that was dead, or may
// have been, answers as dead ones do.
func (j *Judge) allows(legal policy.Outcomes, a *Attempt) bool {
	for o := range legal {
		switch o.Verdict {
		case policy.Untouched:
			// Nothing listens at the host itself, which may have an address before svcproxy knows. It drops what
			// arrives from an address of its own: answers of the one who had it before.
			// A flow from before the service came back is refused until connection tracking has forgotten it.
			has, lacks := j.carried(a)
			if a.Got.Outcome == lab.Untouched || a.Got.Outcome == lab.Refused && (has || j.h.Bound || a.Flow) || a.Got.Outcome == lab.Dropped && has && lacks {
				return true
			}
		case policy.Refused:
			if a.Got.Outcome == lab.Refused {
				return true
			}
		case policy.Dropped:
			if a.Got.Outcome == lab.Dropped {
				return true
			}
		case policy.Balanced:
			if j.answers(o, a) {
				return true
			}
		}
	}
	return false
}

// carried reports whether the node may have had the address that a packet was sent to, and whether it may have lacked it.
func (j *Judge) carried(a *Attempt) (has, lacks bool) {
	for _, h := range between(j.host, a.Start, a.End) {
		own := slices.ContainsFunc(h.Addresses, func(own policy.Address) bool { return own.Addr == a.Packet.To.Addr() })
		has, lacks = has || own, lacks || !own
	}
	return has, lacks
}

// answers reports whether an attempt may have been at an endpoint. A flow keeps the source that it began with.
func (j *Judge) answers(o policy.Outcome, a *Attempt) bool {
	alive := between(j.alive[o.Endpoint.Addr()], a.Start, a.End)
	if a.Got.Outcome == lab.Answered {
		source := a.Packet.Process || a.Flow || o.Masqueraded != a.Own || j.joinsEntry(a)
		return a.By == o.Endpoint.Addr() && a.Got.Port == o.Endpoint.Port() && source && slices.Contains(alive, true)
	}
	return a.Got.Outcome != lab.Untouched && slices.Contains(alive, false)
}

// joinsEntry reports whether an attempt may go on in the entry of an earlier connection from the same source port, to the
// same endpoint and with the same source address: connection tracking keeps an entry that was not closed on both sides.
func (j *Judge) joinsEntry(a *Attempt) bool {
	return a.Port != 0 && slices.ContainsFunc(slices.Concat(j.h.before, j.h.attempts), func(e Attempt) bool {
		return e.Port == a.Port && e.Packet == a.Packet && e.By == a.By && e.Own == a.Own && e.End.Before(a.Start) && a.Start.Sub(e.End) < remembered
	})
}

// mostWorlds is how many worlds an attempt is compared with. With more of them nothing can be said.
const mostWorlds = 1 << 12

// worlds calls try with each world that may have counted at some moment between two, until it returns false.
// It returns false if there are too many of them.
func (j *Judge) worlds(name string, begin, end time.Time, try func(*policy.World) bool) bool {
	for _, host := range between(j.host, begin, end) {
		for _, s := range j.versions(name, begin, end) {
			w := &policy.World{Host: host, Known: map[source.Key]map[netip.AddrPort]policy.Known{}}
			if s == nil {
				if !try(w) {
					return true
				}
				continue
			}
			w.Services = []*source.Service{s}
			known := map[netip.AddrPort]policy.Known{}
			w.Known[s.Key] = known
			goOn, few := true, true
			j.vary(s, begin, end, known, func() bool { goOn = try(w); return goOn }, &few)
			if !few {
				return false
			}
			if !goOn {
				return true
			}
		}
	}
	return true
}

// versions returns those of a service that may have counted; also what is half one and half the other where
// a change has steps: the endpoints of one version, and the source ranges of another.
func (j *Judge) versions(name string, begin, end time.Time) []*source.Service {
	list := between(j.services[name], begin, end)
	if !j.h.Steps && !overlap(j.changes, begin, end) {
		return list
	}
	mixed := slices.Clone(list)
	for _, a := range list {
		for _, b := range list {
			switch {
			case a == b || a == nil:
			case b == nil: // it comes or goes
				empty := *a
				empty.Endpoints = nil
				mixed = append(mixed, &empty)
			default:
				both := *a
				both.SourceRanges, both.LoadBalancerSourceRanges = b.SourceRanges, b.LoadBalancerSourceRanges
				mixed = append(mixed, &both)
			}
		}
	}
	return mixed
}

// vary calls try with all that may be known of the endpoints of a service.
func (j *Judge) vary(s *source.Service, begin, end time.Time, known map[netip.AddrPort]policy.Known, try func() bool, few *bool) {
	type choice struct {
		at     netip.AddrPort
		values []policy.Known
	}
	var choices []choice
	total := 1
	fresh := j.isFresh(s, begin, end)
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		c := choice{at: s.EndpointAt(e)}
		for _, drained := range between(j.drained[e.Addr], begin, end) {
			for _, check := range j.checks(s, e.Addr, begin, end, fresh) {
				c.values = append(c.values, policy.Known{Check: check, Drained: drained})
			}
		}
		if total *= len(c.values); total > mostWorlds {
			*few = false
			return
		}
		choices = append(choices, c)
	}
	for n := range total {
		for _, c := range choices {
			known[c.at] = c.values[n%len(c.values)]
			n /= len(c.values)
		}
		if !try() {
			return
		}
	}
}

// checks returns what a check may say of an endpoint.
func (j *Judge) checks(s *source.Service, a netip.Addr, begin, end time.Time, fresh bool) []policy.Check {
	if s.HealthCheck == nil {
		return []policy.Check{policy.Unknown}
	}
	var list []policy.Check
	for _, alive := range between(j.checked[a], begin.Add(-detection), end) {
		if alive {
			list = append(list, policy.Passed)
		} else {
			list = append(list, policy.Failed)
		}
	}
	if fresh {
		list = append(list, policy.Unknown)
	}
	return list
}

// isFresh reports whether endpoints of a service may not have been asked yet: it has changed, or svcproxy was started again.
func (j *Judge) isFresh(s *source.Service, begin, end time.Time) bool {
	return slices.ContainsFunc(j.h.restarts, func(t time.Time) bool {
		return !t.After(end) && !j.h.Clock.Settled(t, reaction+detection).Before(begin)
	}) || slices.ContainsFunc(j.services[s.Key.Name], func(p period[*source.Service]) bool {
		return !p.From.After(end) && !j.h.Clock.Settled(p.settled, detection).Before(begin)
	})
}

// anotherMode is how long a change of mode may take to be complete. The former mode balances until then.
const anotherMode = 5 * time.Second

// remembered is for how long connection tracking, and IPVS, know a connection that has ended, or a datagram.
const remembered = 5 * time.Minute

// ports returns the attempts of which connection tracking may still know the port at some time.
func (h *History) ports(now time.Time) (list []Attempt) {
	for _, a := range slices.Concat(h.before, h.attempts) {
		if a.Port != 0 && a.Got.Outcome == lab.Answered && !a.Died && now.Sub(a.End) < remembered {
			list = append(list, a)
		}
	}
	return list
}

// unsteady returns where a client with affinity was sent elsewhere though its endpoint was usable all the time.
func (j *Judge) unsteady() (errs []error) {
	type client struct {
		service string
		from    netip.Addr
		to      netip.AddrPort
		proto   source.Protocol
	}
	type flow struct {
		client
		port uint16
	}
	last, earlier := map[client]*Attempt{}, map[flow][]*Attempt{}
	// joined reports whether an attempt may have joined an entry of connection tracking that an earlier one left, from the same port.
	joined := func(c client, a *Attempt) bool {
		return slices.ContainsFunc(earlier[flow{c, a.Port}], func(e *Attempt) bool {
			return e != a && e.By == a.By && a.Start.Sub(e.End) < remembered
		})
	}
	note := func(a *Attempt) {
		if a.Port != 0 {
			f := flow{client{a.Service, a.Packet.From, a.Packet.To, a.Packet.Protocol}, a.Port}
			earlier[f] = append(earlier[f], a)
		}
	}
	for i := range j.h.before {
		note(&j.h.before[i])
	}
	attempts := slices.Clone(j.h.attempts)
	slices.SortStableFunc(attempts, func(a, b Attempt) int { return a.Start.Compare(b.Start) })
	for i := range attempts {
		a := &attempts[i]
		c := client{a.Service, a.Packet.From, a.Packet.To, a.Packet.Protocol}
		if a.Got.Outcome != lab.Answered || a.Died {
			continue
		}
		if note(a); a.Flow {
			continue
		}
		before := last[c]
		if before == nil || a.Start.After(before.End) { // not one beside the other
			last[c] = a
		}
		if before == nil || before.By == a.By || a.Start.Before(before.End) || j.damaged(before.Start, a.End) || j.h.Clock.TooBusy(before.Start, a.End) {
			continue
		}
		if joined(c, before) || joined(c, a) || j.mayMove(before, a) || overlap(j.changes, before.Start, a.End) {
			continue
		}
		errs = append(errs, fmt.Errorf("%s\n\ta client with affinity was at %s before, which was usable all the time: %s", a, before.By, before))
	}
	return errs
}

// mayMove reports whether a client may be sent elsewhere between two attempts.
func (j *Judge) mayMove(before, a *Attempt) bool {
	usable := true
	few := j.worlds(a.Service, before.Start, a.End, func(w *policy.World) bool {
		s := w.Service(a.Packet)
		legal := policy.Legal(w, a.Packet)
		at := slices.ContainsFunc(slices.Collect(maps.Keys(legal)), func(o policy.Outcome) bool {
			return o.Verdict == policy.Balanced && o.Endpoint.Addr() == before.By
		})
		usable = usable && s != nil && s.Affinity > 0 && at
		return usable
	})
	return !few || !usable
}

// describe lists outcomes.
func describe(all policy.Outcomes) string {
	var list []string
	for o := range all {
		switch {
		case o.Verdict != policy.Balanced:
			list = append(list, o.Verdict.String())
		case o.Masqueraded:
			list = append(list, o.Endpoint.String()+" masqueraded")
		default:
			list = append(list, o.Endpoint.String())
		}
	}
	slices.Sort(list)
	return strings.Join(list, ", ")
}
