package file

import (
	"crypto/sha256"
	"errors"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/keep"
	"svcproxy.dev/svcproxy/source/read"
)

// A service whose list does not fit it keeps the version of the list that it has, over a restart too: decisions name it.
// They do so before a record makes it necessary, and until after none does, so that a process that is killed in between
// finds what it needs. A name that is not needed does no harm, since a list in use that fits goes first.

// noteKept notes which lists services keep. mayDrop: the caller has nothing to record.
func (s *Source) noteKept(mayDrop bool) {
	d := &s.decisions
	if len(s.keeping)+len(d.kept) == 0 {
		return
	}
	kept, drop := map[string][]keptList{}, mayDrop && s.store.OnDisk()
	for name, f := range s.keeping {
		kept[name] = f.keeps
	}
	for name, lists := range d.kept {
		now := kept[name]
		for _, k := range lists {
			mayCome := !s.synced || s.store.Counts(name, k.of) // in a file that was not looked at yet, or from a copy
			if (!drop && mayCome || d.goesBackTo(name, k.of)) && k.leave(now) {
				kept[name] = append(slices.Clip(kept[name]), k)
			}
		}
	}
	maps.DeleteFunc(kept, func(_ string, lists []keptList) bool { return len(lists) == 0 })
	if !maps.EqualFunc(kept, d.kept, func(a, b []keptList) bool { return slices.EqualFunc(a, b, keptList.equal) }) {
		d.kept, d.changed = kept, true
	}
}

// leave takes the services out of k that are named by others, and reports whether that leaves any.
func (k *keptList) leave(others []keptList) bool {
	for _, o := range others {
		if o.of != k.of || o.list.Path != k.list.Path {
			continue
		}
		k.services = slices.DeleteFunc(slices.Clone(k.services), func(key string) bool {
			_, named := slices.BinarySearch(o.services, key)
			return named
		})
		if len(k.services) == 0 {
			return false
		}
	}
	return true
}

func (k keptList) equal(o keptList) bool {
	return k.of == o.of && k.list.Path == o.list.Path && k.list.ID == o.list.ID && slices.Equal(k.services, o.services)
}

// keptLists returns the lists that services keep.
func keptLists(b *read.Bound) (lists []keptList) {
	services := map[*read.Version][]string{}
	for key, l := range b.Kept {
		if l != nil {
			services[l] = append(services[l], key.String())
		}
	}
	for l, keys := range services {
		slices.Sort(keys)
		lists = append(lists, keptList{b.Version.ID, l, keys})
	}
	slices.SortFunc(lists, func(a, b keptList) int { return strings.Compare(a.services[0], b.services[0]) })
	return lists
}

// goesBackTo reports whether a version is one that a trial goes back to.
func (d *decisions) goesBackTo(name string, id [sha256.Size]byte) bool {
	return d.trial != nil && d.trial.before[name] != nil && d.trial.before[name].ID == id
}

// recall returns the lists that services of a version keep, as it is recorded of this version or else, if others may stand in,
// of other versions of the file.
func recall(lists []keptList, v *read.Version, others bool) map[source.Key]*read.Version {
	kept := map[source.Key]*read.Version{}
	for _, exact := range []bool{true, false} {
		for _, k := range lists {
			if (k.of == v.ID) != exact || !exact && !others || k.list.List == nil {
				continue
			}
			for _, i := range v.Lists[filepath.Base(k.list.Path)] {
				key := v.Services[i].Key
				if _, named := slices.BinarySearch(k.services, key.String()); kept[key] == nil && (named || k.services == nil) {
					kept[key] = k.list
				}
			}
		}
	}
	return kept
}

// loadLists reads the versions of lists that decisions name from their copies. A version whose copy is lost has a name only.
func (s *Source) loadLists(d *decisions) {
	known := map[keep.Version]*read.Version{}
	d.eachKept(func(k *keptList) {
		name := filepath.Base(k.list.Path)
		is := keep.Version{Name: name, Sum: k.list.ID}
		if known[is] == nil {
			data, err := s.store.Text(name, is.Sum)
			v := read.ListVersion(s.path(name), data, s.rules)
			if known[is] = v; err == nil && v.Broken {
				err = errors.New(v.Faults[0].String())
			}
			if err != nil {
				known[is] = &read.Version{ID: is.Sum, Path: v.Path}
				s.log.Warn("lost the version of an endpoint list that services keep", "file", v.Path, "err", err)
			}
		}
		k.list = known[is]
	})
}
