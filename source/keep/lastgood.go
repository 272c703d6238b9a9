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
	recs := opened(stateDir)
	lists := recs.lists(rules, dir)
	var units []source.Unit
	for _, name := range names {
		r, ok := recs.recordOf(name)
		if !ok || read.IsEndpointsFile(name) {
			continue
		}
		v := recs.lastGood(dir, name, r, rules, rules.ParseCopy)
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

// opened returns records that are only read.
func opened(stateDir string) *records {
	r := newRecords(stateDir, slog.New(slog.DiscardHandler))
	r.Load()
	return r
}

func (r *records) lastGood(dir, name string, rec Record, rules read.Rules, parse read.Parser) *read.Version {
	data, err := r.Read(name, rec)
	if err != nil {
		if _, text, what := r.StandIn(name, rec); what != "" {
			data, err = text, nil
		}
	}
	return read.NewVersion(context.Background(), filepath.Join(dir, name), data, err, rules, parse, nil)
}

// lists looks up lists as they were last accepted.
func (r *records) lists(rules read.Rules, dir string) read.Lookup {
	known := map[string]*read.EndpointList{}
	return func(name string) (*read.EndpointList, string) {
		rec, ok := r.recordOf(name)
		if !ok {
			return nil, read.LacksList
		}
		if _, ok := known[name]; !ok {
			known[name] = r.lastGood(dir, name, rec, rules, nil).List
		}
		return known[name], read.LacksList
	}
}
