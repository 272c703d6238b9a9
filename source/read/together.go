package read

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"syscall"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/decode"
	"svcproxy.dev/svcproxy/source/disk"
)

// together returns files of a directory with the endpoints of their lists. Where the two do not fit
// the fault is that of the list, as it is for who watches them.
func (rules Rules) together(read []*Version) []File {
	lists, used := map[string]*Version{}, map[string]bool{}
	for _, f := range read {
		if name := filepath.Base(f.Path); IsEndpointsFile(name) {
			lists[name] = f
		}
		for name := range f.Lists {
			used[name] = true
		}
	}
	of := rules.lookIn(lists)
	files := make([]File, len(read))
	misfits, places := map[string][]source.Fault{}, Places{}
	for i, f := range read {
		var faults map[string][]source.Fault
		files[i], faults = f.bindTo(rules, of, places)
		for name, list := range faults {
			if !decode.TooMany(misfits[name]) {
				misfits[name] = decode.Cap(filepath.Join(filepath.Dir(f.Path), name), append(misfits[name], list...))
			}
		}
	}
	for i, f := range read {
		name := filepath.Base(f.Path)
		if files[i].Faults = slices.Concat(files[i].Faults, misfits[name]); f.List != nil && !used[name] {
			files[i].Faults = append(files[i].Faults, UnusedList(f.Path))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(used)) {
		if last := rules.Before.Lists[name]; last != nil && lists[name] == nil { // in use still
			files = append(files, File{Path: last.Path, Faults: []source.Fault{Unreadable(last.Path, syscall.ENOENT)}})
		}
	}
	return files
}

// lookIn looks lists up that were read, or were in use before.
func (rules Rules) lookIn(lists map[string]*Version) Lookup {
	return func(name string) (*Version, string) {
		v, last := lists[name], rules.Before.Lists[name]
		switch {
		case v != nil && v.List != nil:
			return v, ""
		case last != nil || v == nil:
			return last, LacksList
		}
		return nil, BrokenList(v)
	}
}

// bindTo returns f with its lists, and the faults of those. What makes f unfit is its own fault, as that a list is missing.
func (f *Version) bindTo(rules Rules, of Lookup, places Places) (File, map[string][]source.Fault) {
	out := File{Path: f.Path, Services: f.Services, Faults: f.Faults, Unreadable: f.unreadable}
	base := rules.Before.Bound[filepath.Base(f.Path)]
	if base != nil {
		out.inUse = rules.Bind(base.Version, of, base, nil, places)
	}
	if len(f.Lists) == 0 {
		return out, nil
	}
	b := rules.Bind(f, of, base, nil, places)
	out.Services, out.Faults = b.Services, slices.Concat(out.Faults, b.Warned)
	if b.Unfit {
		out.Services, out.Faults, b.Faults = nil, slices.Concat(out.Faults, b.AllFaults()), nil
	}
	for name, faults := range b.Faults {
		if b.Lists[name] == nil {
			out.Faults = append(out.Faults, faults...)
			delete(b.Faults, name)
		}
	}
	return out, b.Faults
}

// alone returns f, of which alone is told, with its lists.
func (f *Version) alone(rules Rules, of Lookup) File {
	out, faults := f.bindTo(rules, of, nil)
	for _, name := range slices.Sorted(maps.Keys(faults)) {
		out.Faults = append(out.Faults, faults[name]...)
	}
	return out
}

// listsOf looks lists up in a directory.
func (rules Rules) listsOf(d *disk.Asker, dir string) Lookup {
	lists := map[string]*Version{}
	of := rules.lookIn(lists)
	return func(name string) (*Version, string) {
		path := filepath.Join(dir, name)
		if lists[name] == nil {
			if t := d.ReadOnce(path, rules.MaxSize()); !errors.Is(t.Err, fs.ErrNotExist) {
				lists[name] = NewVersion(context.Background(), path, t.Data, t.Err, rules.OfText(t), nil, nil)
			}
		}
		return of(name)
	}
}
