package plan

import (
	"maps"
	"net/netip"
	"path/filepath"
	"slices"

	"svcproxy.dev/svcproxy/cmd/internal/check"
	"svcproxy.dev/svcproxy/proxier/claims"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/file"
	"svcproxy.dev/svcproxy/source/keep"
	"svcproxy.dev/svcproxy/source/read"
)

// A Reading is what service files say, and what was there before them.
type Reading struct {
	Before, After []*source.Service // in use, in order of their names
	Edits         []claims.Transition
	Faults        []source.Fault
	Unreadable    bool // a fault says what
}

// LastGood reads the service files of a directory as a daemon that starts there would, after
// the versions that were last accepted.
func LastGood(rules read.Rules, reserved []netip.AddrPort, dir, stateDir string) *Reading {
	r := new(Reading)
	units, before := file.Recall(rules, dir, stateDir)
	old := slices.Collect(maps.Values(units))
	rules.Before = before
	set, names := r.directory(rules, dir, keep.Recorded(stateDir))
	var gone []source.UnitID
	if err := file.CheckListing(dir, stateDir); err != nil {
		r.unreadable(dir, err)
	} else {
		gone = missing(old, names)
	}
	r.apply(rules, reserved, old, source.Changes{Set: set, Delete: gone})
	return r
}

// Directories reads service files that are to replace those of another directory. Faults
// are those of both.
func Directories(oldRules, rules read.Rules, reserved []netip.AddrPort, oldDir, dir string) *Reading {
	r := new(Reading)
	oldRules.From.Elsewhere, rules.From.Elsewhere = true, true
	old, names := r.directory(oldRules, oldDir, nil)
	for i := range old {
		old[i].ID.Name, old[i].Since = filepath.Join(dir, filepath.Base(old[i].ID.Name)), 1
	}
	set, newNames := r.directory(rules, dir, nil)
	if names == nil || newNames == nil {
		return r // there is nothing to compare
	}
	r.apply(rules, reserved, old, source.Changes{Set: set, Delete: missing(old, newNames)})
	return r
}

// directory reads all files of a directory, and returns those that can be used, and the
// names of all; nil where the directory cannot be read. known: see read.Rules.ReadDir.
func (r *Reading) directory(rules read.Rules, dir string, known map[string]bool) (units []source.Unit, names map[string]bool) {
	files, err := rules.ReadDir(dir, known)
	if err != nil {
		r.unreadable(dir, err)
		return nil, nil
	}
	names = make(map[string]bool)
	for _, f := range files {
		names[filepath.Base(f.Path)] = true
		r.Faults, r.Unreadable = append(r.Faults, f.Faults...), r.Unreadable || f.Unreadable
		if u, news := f.Unit(source.UnitID{Source: file.Name, Name: f.Path}); news {
			units = append(units, u)
		}
	}
	return units, names
}

func (r *Reading) unreadable(path string, err error) {
	r.Unreadable = true
	if f := read.UnreadableFault(path, err); !slices.Contains(r.Faults, f) {
		r.Faults = append(r.Faults, f)
	}
}

// missing returns the units whose files are not there.
func missing(old []source.Unit, names map[string]bool) (gone []source.UnitID) {
	for _, u := range old {
		if !names[filepath.Base(u.ID.Name)] {
			gone = append(gone, u.ID)
		}
	}
	return gone
}

// apply has old units followed by a change, as a daemon does.
func (r *Reading) apply(rules read.Rules, reserved []netip.AddrPort, old []source.Unit, ch source.Changes) {
	since := make(map[source.UnitID]int64)
	for _, u := range old {
		since[u.ID] = u.Since
	}
	for i := range ch.Set {
		ch.Set[i].Since = since[ch.Set[i].ID]
	}
	t := claims.NewTracker(reserved, file.Name)
	t.Limit(rules.Limits.Products())
	services := make(map[source.Key]*source.Service)
	take := func(list []claims.Transition) {
		for _, tr := range list {
			if tr.Old != nil {
				delete(services, tr.Old.Key)
			}
			if tr.New != nil {
				services[tr.New.Key] = tr.New
			}
		}
	}
	take(t.Apply(source.Changes{Set: old}))
	r.Before = inOrder(services)
	r.Edits = t.Apply(ch)
	take(r.Edits)
	r.After = inOrder(services)
	for _, refused := range t.Refusals() {
		r.Faults = append(r.Faults, refused.Faults...)
	}
	check.SortByPlace(r.Faults)
}

func inOrder(services map[source.Key]*source.Service) []*source.Service {
	list := make([]*source.Service, 0, len(services))
	for _, s := range services {
		list = append(list, s)
	}
	slices.SortFunc(list, func(a, b *source.Service) int { return a.Key.Compare(b.Key) })
	return list
}
