package file

import (
	"context"
	"time"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/keep"
	"svcproxy.dev/svcproxy/source/read"
)

// goneBack returns what is to be used at the start of p's file, for an apply was not confirmed.
func (s *Source) goneBack(ctx context.Context, p *probe, t *trial, rec keep.Record, ok bool) (keep.Record, bool) {
	found := p.v.ID
	if p.v.Broken {
		found = rec.Sum
	}
	want, had := t.before[p.name]
	held := s.decisions.pins[p.name]
	refused, wasRefused := t.refused[p.name]
	switch {
	case wasRefused && refused == p.v.ID && had == ok && (!had || rec.Sum == want.ID):
		return rec, ok // as when it began
	case !had && p.v == read.Gone:
		return keep.Record{}, false
	case had && p.v.ID == want.ID && !p.v.Broken:
		return keep.Record{Sum: want.ID, Since: firstTime(rec, ok, t.began), At: t.began}, true
	case had && ok && rec.Sum == want.ID && held != nil && held.found == p.v.ID:
		return rec, ok // none of it was applied
	}
	p.pin = &pin{state: source.RolledBack, found: found, since: time.Now().Round(0), why: unconfirmed(t)}
	if had {
		p.pin.use = want.ID
	}
	return s.insteadOf(ctx, p, p.pin, rec, ok)
}

// insteadOf returns the record of the version that is used in place of p's, and has it read.
func (s *Source) insteadOf(ctx context.Context, p *probe, pn *pin, rec keep.Record, ok bool) (keep.Record, bool) {
	if pn.use == ([32]byte{}) {
		return keep.Record{}, false
	}
	v, err := s.keptVersion(ctx, p.name, pn.use)
	if err != nil {
		p.pin, p.unpin = nil, true
		p.damage = s.damage(p.name, pn.use, err.Error())
		return rec, ok
	}
	p.good = v
	return keep.Record{Sum: pn.use, Since: firstTime(rec, ok, pn.since), At: pn.since}, true
}

// firstTime returns when a file was first accepted, as a record says if there is one.
func firstTime(rec keep.Record, ok bool, otherwise time.Time) time.Time {
	if ok {
		return rec.Since
	}
	return otherwise
}

// takePins notes what was decided at the first look. The caller holds s.mu.
func (s *Source) takePins(p *probe) {
	if p.pin != nil {
		s.decisions.pin(p.name, p.pin)
	}
	if p.unpin {
		s.decisions.unpin(p.name)
	}
}
