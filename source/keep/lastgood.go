package keep

import (
	"context"
	"log/slog"
	"path/filepath"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/read"
)

// LastGood returns the versions of these files of dir that were last accepted, as
// stateDir keeps them: what a daemon that starts now would give them back before it
// reads what they say. It writes nothing. Without a right to read there are none.
func LastGood(rules read.Rules, dir, stateDir string, names []string) []source.Unit {
	st := opened(stateDir)
	lists := lastGoodLists(rules, st, dir)
	var units []source.Unit
	for _, name := range names {
		r, ok := st.recordOf(name)
		if !ok || read.IsEndpointsFile(name) {
			continue
		}
		v := st.lastGood(dir, name, r, rules, rules.ParseCopy)
		if v.Broken {
			continue
		}
		b := rules.BindVersion(v, lists, nil)
		units = append(units, source.Unit{
			ID: source.UnitID{Source: read.Source, Name: v.Path}, Version: v.Name(),
			Since: r.Since.UnixNano(), Services: b.Services(v, lists, rules.BindLoosely),
		})
	}
	return units
}

// Recorded returns the names of the files of which stateDir keeps a last good version.
func Recorded(stateDir string) map[string]bool {
	names := map[string]bool{}
	for _, name := range opened(stateDir).Names() {
		names[name] = true
	}
	return names
}

// opened returns a store that is only read.
func opened(stateDir string) *Store {
	st := New(stateDir, slog.New(slog.DiscardHandler))
	st.Load()
	return st
}

func (st *Store) lastGood(dir, name string, r Record, rules read.Rules, parse read.Parser) *read.Version {
	data, err := st.Read(name, r)
	if err != nil {
		if _, text, what := st.StandIn(name, r); what != "" {
			data, err = text, nil
		}
	}
	return read.NewVersion(context.Background(), filepath.Join(dir, name), data, err, rules, parse, nil)
}

// lastGoodLists looks up lists as they were last accepted.
func lastGoodLists(rules read.Rules, st *Store, dir string) read.Lookup {
	known := map[string]*read.EndpointList{}
	return func(name string) (*read.EndpointList, string) {
		r, ok := st.recordOf(name)
		if !ok {
			return nil, read.LacksList
		}
		if _, ok := known[name]; !ok {
			known[name] = st.lastGood(dir, name, r, rules, nil).List
		}
		return known[name], read.LacksList
	}
}
