package read

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
	*Version
	unreadable bool
}

// together returns files of a directory with the endpoints of their lists. Where the two do not fit
// the fault is that of the list, as it is for who watches them.
func (rules Rules) together(read []readVersion) []File {
	lists, used := map[string]*Version{}, map[string]bool{}
	for _, f := range read {
		if name := filepath.Base(f.Path); IsEndpointsFile(name) {
			lists[name] = f.Version
		}
		for name := range f.Lists {
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
		name := filepath.Base(f.Path)
		if files[i].Faults = slices.Concat(files[i].Faults, misfits[name]); f.List != nil && !used[name] {
			files[i].Faults = append(files[i].Faults, UnusedList(f.Path))
		}
	}
	return files
}

func lookIn(lists map[string]*Version) Lookup {
	return func(name string) (*EndpointList, string) {
		v := lists[name]
		if v == nil {
			return nil, LacksList
		}
		return v.List, BrokenList(v)
	}
}

// bind returns f with its lists, and the faults of those that there are. That one is missing is its own fault.
func (f readVersion) bind(rules Rules, of Lookup) (File, map[string][]source.Fault) {
	out := File{Path: f.Path, Services: f.Services, Faults: f.Faults, Unreadable: f.unreadable}
	if len(f.Lists) == 0 {
		return out, nil
	}
	b := rules.BindVersion(f.Version, of, nil)
	out.Faults = slices.Concat(out.Faults, b.Warned)
	for name, faults := range b.Faults {
		if l, _ := of(name); l == nil {
			out.Faults = append(out.Faults, faults...)
			delete(b.Faults, name)
		}
	}
	out.Services = b.Services(f.Version, of, rules.BindLoosely)
	if source.AnyError(out.Faults) {
		out.Services = nil
	}
	return out, b.Faults
}

// with returns f, of which alone is told, with its lists.
func (f readVersion) with(rules Rules, of Lookup) File {
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
func (rules Rules) listsOf(d *disk.Asker, dir string) Lookup {
	known := map[string]*Version{}
	return func(name string) (*EndpointList, string) {
		path := filepath.Join(dir, name)
		if known[name] == nil {
			t := d.ReadOnce(path, rules.MaxSize())
			if errors.Is(t.Err, fs.ErrNotExist) {
				return nil, LacksList
			}
			of := rules
			of.Hidden = t.Hidden
			known[name] = NewVersion(context.Background(), path, t.Data, t.Err, of, nil, nil)
		}
		return known[name].List, BrokenList(known[name])
	}
}
