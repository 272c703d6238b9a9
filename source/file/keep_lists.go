package file

import (
	"errors"
	"maps"
	"path/filepath"
	"slices"

	"svcproxy.dev/svcproxy/source/read"
)

// noteKept notes which versions of lists services keep, so that they do over a restart too. That is written before a record makes
// it necessary, and dropped after the disk has what makes it needless: a process may be killed in between. A version that is not
// needed does no harm, since a list in use that fits goes first. mayDrop: the caller has nothing to record.
func (s *Source) noteKept(mayDrop bool) {
	d := &s.decisions
	if len(s.keeping)+len(d.kept) == 0 {
		return
	}
	keeps, drop := map[*read.Version]bool{}, mayDrop && s.synced && (s.store.OnDisk() || s.store.WriteError() != "")
	for _, f := range s.keeping {
		for _, l := range f.keeps {
			keeps[l] = true
		}
	}
	kept := map[string][]*read.Version{}
	for name, lists := range d.kept {
		kept[name] = slices.DeleteFunc(slices.Clone(lists), func(l *read.Version) bool { return drop && !keeps[l] })
	}
	for l := range keeps {
		if name := filepath.Base(l.Path); !slices.ContainsFunc(kept[name], func(k *read.Version) bool { return k.ID == l.ID }) {
			kept[name] = append(kept[name], l)
		}
	}
	maps.DeleteFunc(kept, func(_ string, lists []*read.Version) bool { return len(lists) == 0 })
	if !maps.EqualFunc(kept, d.kept, slices.Equal) {
		d.kept, d.changed = kept, true
	}
}

// loadLists reads the versions of lists that decisions name from their copies. A version whose copy is lost has a name only.
func (s *Source) loadLists(d *decisions) {
	for _, l := range d.lists() {
		data, err := s.store.Text(filepath.Base(l.Path), l.ID)
		v := read.ListVersion(s.path(l.Path), data, s.rules)
		if l.Path = v.Path; err == nil && v.Broken {
			err = errors.New(v.Faults[0].String())
		}
		if l.List = v.List; err != nil {
			s.log.Warn("lost the version of an endpoint list that services keep", "file", v.Path, "err", err)
		}
	}
}
