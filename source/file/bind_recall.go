package file

import (
	"context"
	"path/filepath"
	"time"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/read"
)

// Recall returns what a state directory says of the files of a directory, by name: what a daemon that starts now would give them
// back before it reads what they say, and bind them to. It writes nothing. Without a right to read there is nothing, and
// without a state directory, empty, neither.
func Recall(rules read.Rules, dir, stateDir string) (units map[string]source.Unit, before read.Before) {
	s := New(Options{Dir: dir, StateDir: stateDir, Rules: rules})
	units, before = map[string]source.Unit{}, read.Before{Bound: map[string]*read.Bound{}, Lists: map[string]*read.Version{}}
	if s.store == nil {
		return units, before
	}
	s.store.Load()
	s.loadDecisions(time.Now())
	var ch source.Changes
	for _, name := range s.store.Names() {
		rec, _ := s.store.Find(name)
		data, err := s.store.Read(name, rec)
		if err != nil {
			if _, text, what := s.store.StandIn(name, rec); what != "" {
				data, err = text, nil
			}
		}
		v := read.NewVersion(context.Background(), s.path(name), data, err, rules, rules.ParseCopy, nil)
		if v.Broken {
			continue
		}
		f := &state{path: v.Path, used: v, good: v, claimedAt: rec.Since}
		if s.files[name] = f; f.isList() {
			before.Lists[name] = v
		} else {
			ch.Set = append(ch.Set, s.outgoing(f))
		}
	}
	s.complete(s.newPlan(nil), &ch)
	for _, u := range ch.Set {
		name := filepath.Base(u.ID.Name)
		units[name], before.Bound[name] = u, s.files[name].bound
	}
	return units, before
}
