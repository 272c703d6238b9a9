package file

import (
	"context"
	"log/slog"
	"path/filepath"

	"svcproxy.dev/svcproxy/source"
)

// restore finds the last good version of p's file. As a rule that is the one
// just read, and the copy of it is not touched.
func (s *Source) restore(ctx context.Context, p *probe) {
	rec, ok := s.store.recordOf(p.name)
	if !ok && s.store.indexDamaged {
		rec, ok = s.store.recordCopy(p.name)
	}
	if t := s.decisions.trial; t != nil && t.back {
		rec, ok = s.goneBack(ctx, p, t, rec, ok)
	} else if pin := s.decisions.pins[p.name]; pin != nil && pin.state == source.RolledBack && pin.found == p.v.id {
		rec, ok = s.insteadOf(ctx, p, pin, rec, ok)
	}
	if !ok || p.v == gone && !s.keepsMissing() {
		return
	}
	if p.last = rec; p.good != nil {
		return
	}
	if p.v.id == rec.sum {
		if !p.v.broken { // it may be to a newer version of this program
			p.good, p.v.data = p.v, nil
		}
		return
	}
	data, err := s.store.read(p.name, rec)
	if err != nil {
		p.damage = s.damage(p.name, rec, reason(err))
		older, text, ok := s.store.newestCopy(p.name)
		if !ok {
			return
		}
		p.last, data = record{older.sum, rec.since, older.at}, text
		s.store.useOlder(p.name, p.last)
		p.damage[0].Msg += "; the one before it is used"
	}
	switch v := newVersion(ctx, p.f.path, data, nil, s.parse, nil); {
	case v.broken: // it may be to a newer version of this program
		p.damage = s.damage(p.name, p.last, source.FirstError(v.faults).Msg)
	default:
		p.good = v
		if p.damage == nil { // else it is written again
			v.data = nil
		}
	}
}

// LastGood returns the versions of these files of dir that were last accepted, as
// stateDir keeps them: what a daemon that starts now would give them back before it
// reads what they say. It writes nothing. Without a right to read there are none.
func (rules Rules) LastGood(dir, stateDir string, names []string) []source.Unit {
	st := newStore(stateDir, slog.New(slog.DiscardHandler))
	st.loadIndex()
	lists := lastGoodLists(st, dir)
	var units []source.Unit
	for _, name := range names {
		r, ok := st.recordOf(name)
		if !ok || isEndpointsFile(name) {
			continue
		}
		v := st.lastGood(dir, name, r, rules.parseNew)
		if v.broken {
			continue
		}
		b := rules.bindVersion(v, lists, nil)
		units = append(units, source.Unit{
			ID: source.UnitID{Source: Name, Name: v.path}, Version: v.name(),
			Since: r.since.UnixNano(), Services: b.services(v, lists, rules.bindLoosely),
		})
	}
	return units
}

func (st *store) lastGood(dir, name string, r record, parse parser) *version {
	data, err := st.read(name, r)
	return newVersion(context.Background(), filepath.Join(dir, name), data, err, parse, nil)
}

// lastGoodLists looks up lists as they were last accepted.
func lastGoodLists(st *store, dir string) lookup {
	known := map[string]*endpointList{}
	return func(name string) (*endpointList, string) {
		r, ok := st.recordOf(name)
		if !ok {
			return nil, lacksList
		}
		if _, ok := known[name]; !ok {
			known[name] = st.lastGood(dir, name, r, nil).list
		}
		return known[name], lacksList
	}
}

// AllLastGood is LastGood for every file of dir that was ever accepted and not removed.
func (rules Rules) AllLastGood(dir, stateDir string) []source.Unit {
	st := newStore(stateDir, slog.New(slog.DiscardHandler))
	st.loadIndex()
	return rules.LastGood(dir, stateDir, st.recordedNames())
}
