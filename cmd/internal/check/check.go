// Package check reads settings and service files as the daemon would, and says
// all that is wrong with them. It touches nothing.
package check

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"svcproxy/cmd/internal/node"
	"svcproxy/configs"
	"svcproxy/proxier"
	"svcproxy/source"
	"svcproxy/source/file"
)

// Load reads a settings file. One that does not exist gives the defaults.
type Load func(path string) (configs.Settings, []source.Fault, error)

// Path returns every fault of what is at path. A directory is checked as one to
// configure from. A service file is checked alone or, when it lies in
// configDir, against what else is there, as one that came last. The error says
// what could not be read.
func Path(path, configDir string, load Load) ([]source.Fault, error) {
	info, err := readable(path)
	switch {
	case err != nil:
		return nil, fmt.Errorf("checking: %w", err)
	case info.IsDir():
		return directory(path, load)
	case filepath.Base(path) == file.SettingsName:
		_, faults, err := load(path)
		return faults, err
	case sameDir(filepath.Dir(path), configDir):
		return member(path, configDir, load)
	}
	return alone(path), nil
}

// readable returns what is at path, if it can be read.
func readable(path string) (os.FileInfo, error) {
	info, err := os.Stat(path)
	if err != nil || !info.Mode().IsRegular() { // to open something else may block
		return info, err
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	return info, f.Close()
}

// directory checks the settings of dir, every file, and all files together.
func directory(dir string, load Load) ([]source.Fault, error) {
	s, faults, err := load(filepath.Join(dir, file.SettingsName))
	if err != nil {
		return nil, err
	}
	files, err := file.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("checking: %w", err)
	}
	for _, f := range files {
		faults = append(faults, f.Faults...)
	}
	t := proxier.NewTracker(node.Reserved(s))
	t.Apply(source.Changes{Set: units(files)})
	return append(faults, refusals(t, "")...), nil
}

// member checks one file of configDir. What the others claim is theirs.
func member(path, configDir string, load Load) ([]source.Fault, error) {
	s, _, err := load(filepath.Join(configDir, file.SettingsName))
	if err != nil {
		return nil, err
	}
	files, err := file.ReadDir(configDir)
	if err != nil {
		return nil, fmt.Errorf("checking: %w", err)
	}
	f := file.ReadFile(path)
	others := slices.DeleteFunc(files, func(o file.File) bool { return filepath.Base(o.Path) == filepath.Base(path) })
	t := proxier.NewTracker(node.Reserved(s))
	t.Apply(source.Changes{Set: units(others)})
	t.Apply(source.Changes{Set: units([]file.File{f})})
	return append(f.Faults, refusals(t, f.Path)...), nil
}

// alone checks one file against nothing but itself.
func alone(path string) []source.Fault {
	f := file.ReadFile(path)
	t := proxier.NewTracker(nil)
	t.Apply(source.Changes{Set: units([]file.File{f})})
	return append(f.Faults, refusals(t, path)...)
}

// units returns the files that can be used.
func units(files []file.File) []source.Unit {
	var out []source.Unit
	for _, f := range files {
		if !Fatal(f.Faults) {
			out = append(out, source.Unit{ID: source.UnitID{Source: file.Name, Name: f.Path}, Services: f.Services})
		}
	}
	return out
}

// refusals returns why a file, or any file if path is empty, cannot be used
// together with the others, in order of place.
func refusals(t *proxier.Tracker, path string) []source.Fault {
	var faults []source.Fault
	for _, r := range t.Refusals() {
		if path == "" || r.Unit.Name == path {
			faults = append(faults, r.Faults...)
		}
	}
	slices.SortStableFunc(faults, func(a, b source.Fault) int {
		return cmp.Or(cmp.Compare(a.Pos.File, b.Pos.File), cmp.Compare(a.Pos.Line, b.Pos.Line), cmp.Compare(a.Pos.Col, b.Pos.Col))
	})
	return faults
}

// Fatal tells whether any fault is more than a warning.
func Fatal(faults []source.Fault) bool {
	return slices.ContainsFunc(faults, func(f source.Fault) bool { return !f.Warning })
}

// sameDir tells whether two paths lead to one directory.
func sameDir(a, b string) bool {
	ai, err := os.Stat(a)
	if err != nil {
		return false
	}
	bi, err := os.Stat(b)
	return err == nil && os.SameFile(ai, bi)
}
