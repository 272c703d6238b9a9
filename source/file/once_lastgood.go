package file

import (
	"context"
	"log/slog"
	"path/filepath"

	"svcproxy.dev/svcproxy/source"
)

// LastGood returns the versions of these files of dir that were last accepted, as
// stateDir keeps them: what a daemon that starts now would give them back before it
// reads what they say. It writes nothing. Without a right to read there are none.
func (rules Rules) LastGood(dir, stateDir string, names []string) []source.Unit {
	st := newStore(stateDir, slog.New(slog.DiscardHandler))
	st.loadIndex()
	lists := rules.lastGoodLists(st, dir)
	var units []source.Unit
	for _, name := range names {
		r, ok := st.recordOf(name)
		if !ok || isEndpointsFile(name) {
			continue
		}
		v := st.lastGood(dir, name, r, rules, rules.parseCopy)
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

// Recorded returns the names of the files of which stateDir keeps a last good version.
func Recorded(stateDir string) map[string]bool {
	st := newStore(stateDir, slog.New(slog.DiscardHandler))
	st.loadIndex()
	names := map[string]bool{}
	for _, name := range st.recordedNames() {
		names[name] = true
	}
	return names
}

func (st *store) lastGood(dir, name string, r record, rules Rules, parse parser) *version {
	data, err := st.read(name, r)
	if err != nil {
		if _, text, what := st.standIn(name, r); what != "" {
			data, err = text, nil
		}
	}
	return newVersion(context.Background(), filepath.Join(dir, name), data, err, rules, parse, nil)
}

// lastGoodLists looks up lists as they were last accepted.
func (rules Rules) lastGoodLists(st *store, dir string) lookup {
	known := map[string]*endpointList{}
	return func(name string) (*endpointList, string) {
		r, ok := st.recordOf(name)
		if !ok {
			return nil, lacksList
		}
		if _, ok := known[name]; !ok {
			known[name] = st.lastGood(dir, name, r, rules, nil).list
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
