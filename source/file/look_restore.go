package file

import (
	"context"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/read"
)

// restore finds the last good version of p's file. As a rule that is the one
// just read, and the copy of it is not touched.
func (s *Source) restore(ctx context.Context, p *probe) {
	rec, ok := s.store.Find(p.name)
	if t := s.decisions.trial; t != nil && t.back {
		rec, ok = s.goneBack(ctx, p, t, rec, ok)
	} else if pin := s.decisions.pins[p.name]; pin != nil && pin.state == source.RolledBack && pin.found == p.v.ID {
		rec, ok = s.insteadOf(ctx, p, pin, rec, ok)
	}
	if !ok || p.v == read.Gone && !s.keepsMissing() {
		return
	}
	if p.last, p.lost = rec, rec.Sum; p.good != nil {
		return
	}
	if p.v.ID == rec.Sum && !p.v.Broken { // it may be to a newer version of this program
		p.good, p.v.Data = p.v, nil
		return
	}
	data, err := s.store.Read(p.name, rec)
	if err != nil {
		p.damage = s.damage(p.name, rec.Sum, read.Reason(err))
		other, text, what := s.store.StandIn(p.name, rec)
		if what == "" {
			p.damage[0].Msg += "; no older one is kept, so none of its services are used"
			return
		}
		p.last, data = other, text
		p.damage[0].Msg += "; " + what + " is used"
	}
	rules := s.rules
	rules.Hidden = p.IsLink() // nobody knows whose file it was
	switch v := read.NewVersion(ctx, p.f.path, data, nil, rules, s.parseCopy, nil); {
	case v.Broken && p.v.ID == v.ID: // the file says what is wrong with it
	case v.Broken:
		p.damage = s.damage(p.name, p.last.Sum, source.FirstError(v.Faults).Msg)
	default:
		p.good = v
		if p.damage == nil { // else it is written again
			v.Data = nil
		}
	}
}
