package file

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"slices"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/disk"
)

// A readVersion is a version of a file that was read once.
type readVersion struct {
	*version
	unreadable bool
}

// together returns files of a directory with the endpoints of their lists. Where the two do not fit
// the fault is that of the list, as it is for who watches them.
func (rules Rules) together(read []readVersion) []File {
	lists, used := map[string]*version{}, map[string]bool{}
	for _, f := range read {
		if name := filepath.Base(f.path); isEndpointsFile(name) {
			lists[name] = f.version
		}
		for name := range f.lists {
			used[name] = true
		}
	}
	of := lookIn(lists)
	files := make([]File, len(read))
	misfits := map[string][]source.Fault{}
	for i, f := range read {
		var faults map[string][]source.Fault
		files[i], faults = f.bind(rules, of)
		for name, list := range faults {
			misfits[name] = append(misfits[name], list...)
		}
	}
	for i, f := range read {
		name := filepath.Base(f.path)
		if files[i].Faults = slices.Concat(files[i].Faults, misfits[name]); f.list != nil && !used[name] {
			files[i].Faults = append(files[i].Faults, unusedList(f.path))
		}
	}
	return files
}

func lookIn(lists map[string]*version) lookup {
	return func(name string) (*endpointList, string) {
		v := lists[name]
		if v == nil {
			return nil, lacksList
		}
		return v.list, brokenList(v)
	}
}

// bind returns f with its lists, and the faults of those that there are. That one is missing is its own fault.
func (f readVersion) bind(rules Rules, of lookup) (File, map[string][]source.Fault) {
	out := File{Path: f.path, Services: f.services, Faults: f.faults, Unreadable: f.unreadable}
	if len(f.lists) == 0 {
		return out, nil
	}
	b := rules.bindVersion(f.version, of, nil)
	out.Faults = slices.Concat(out.Faults, b.warned)
	for name, faults := range b.faults {
		if l, _ := of(name); l == nil {
			out.Faults = append(out.Faults, faults...)
			delete(b.faults, name)
		}
	}
	out.Services = b.services(f.version, of, rules.bindLoosely)
	if source.AnyError(out.Faults) {
		out.Services = nil
	}
	return out, b.faults
}

// with returns f, of which alone is told, with its lists.
func (f readVersion) with(rules Rules, of lookup) File {
	out, faults := f.bind(rules, of)
	for _, list := range faults {
		out.Faults = append(out.Faults, list...)
	}
	if source.AnyError(out.Faults) {
		out.Services = nil
	}
	return out
}

// listsOf looks lists up in a directory.
func (rules Rules) listsOf(d *disk.Asker, dir string) lookup {
	known := map[string]*version{}
	return func(name string) (*endpointList, string) {
		path := filepath.Join(dir, name)
		if known[name] == nil {
			t := d.ReadOnce(path, rules.maxSize())
			if errors.Is(t.Err, fs.ErrNotExist) {
				return nil, lacksList
			}
			of := rules
			of.hidden = t.Hidden
			known[name] = newVersion(context.Background(), path, t.Data, t.Err, of, nil, nil)
		}
		return known[name].list, brokenList(known[name])
	}
}
