package plan

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"svcproxy.dev/svcproxy/cmd/internal/modes"
	"svcproxy.dev/svcproxy/cmd/internal/node"
	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/report"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/read"
)

// Against says what leads from the files of one directory to those of another, of which each
// may have a svcproxy.toml. It asks neither this host nor a daemon: addresses of the host
// are not known.
type Against struct {
	Old, New string // directories

	// Load reads a settings file. One that does not exist gives the defaults.
	Load func(path string) (configs.Settings, []source.Fault, error)

	// Rules returns what service files are held to under settings.
	Rules func(configs.Settings) read.Rules
}

// Report compares the directories.
func (a Against) Report() *Report {
	r := &Report{Against: a.Old}
	old, now := a.settings(a.Old, r), a.settings(a.New, r)
	m := modeOf(now)
	r.Mode, r.Settings = m.Name, settingsEdits(old, now)
	reading := Directories(a.Rules(old), a.Rules(now), node.Reserved(now), a.Old, a.New)
	r.Faults, r.Unreadable = append(r.Faults, reading.Faults...), r.Unreadable || reading.Unreadable
	var families []*report.FamilyPlan
	for _, fam := range []policy.Family{policy.IPv4, policy.IPv6} {
		if p := compare(fam, old, now, reading); p != nil {
			families = append(families, p)
		}
	}
	r.Fill(reading.Edits, families, Setting{Drains: m.DrainTimeout != nil, Drain: m.DrainTimeoutUnder(now)})
	return r
}

// settings reads those of a directory. Where they have faults, all else is compared under
// the defaults.
func (a Against) settings(dir string, r *Report) configs.Settings {
	path := filepath.Join(dir, read.SettingsName)
	s, faults, err := a.Load(path)
	if err != nil {
		r.Unreadable = true
		faults = append(faults, read.UnreadableFault(path, err))
	}
	r.Faults = append(r.Faults, faults...)
	if source.AnyError(faults) {
		return configs.Default()
	}
	return s
}

// modeOf returns the mode in which kernel objects are shown: for auto the one that it prefers.
func modeOf(s configs.Settings) modes.Mode {
	if m, err := modes.Named(s.Mode); err == nil {
		return m
	}
	return modes.All[0]
}

// settingsEdits returns which settings differ. Tables of a list are those at the same place in it.
func settingsEdits(old, now configs.Settings) (edits []Edit) {
	was, gone := map[string]string{}, settingsLines(old)
	for _, l := range gone {
		was[l.Key] = l.New
	}
	for _, l := range settingsLines(now) {
		if l.Old = was[l.Key]; l.Old != l.New {
			edits = append(edits, l)
		}
		delete(was, l.Key)
	}
	for _, l := range gone {
		if was[l.Key] != "" {
			edits = append(edits, Edit{Key: l.Key, Old: l.New, New: "none"})
		}
	}
	return edits
}

// settingsLines returns all settings as new ones, in order, with the names of their tables.
func settingsLines(s configs.Settings) (list []Edit) {
	table, tables := "", map[string]int{}
	for line := range strings.Lines(string(configs.Format(s))) {
		line = strings.TrimSpace(line)
		if name, ok := strings.CutPrefix(line, "[["); ok {
			name = strings.TrimSuffix(name, "]]")
			table = fmt.Sprintf("%s[%d].", name, tables[name])
			tables[name]++
		} else if name, ok := strings.CutPrefix(line, "["); ok {
			table = strings.TrimSuffix(name, "]") + "."
		}
		if key, value, ok := strings.Cut(line, " = "); ok {
			list = append(list, Edit{Key: table + key, New: value})
		}
	}
	return list
}

// compare returns what changes of a family; nil where neither settings have it.
func compare(fam policy.Family, old, now configs.Settings, r *Reading) *report.FamilyPlan {
	was, is := slices.Contains(node.Families(old), fam), slices.Contains(node.Families(now), fam)
	if !was && !is {
		return nil
	}
	state := func(s configs.Settings, in bool, services []*source.Service) *policy.State {
		if !in {
			services = nil
		}
		return policy.NewState(fam, node.Build(s, nil), services)
	}
	before, after := state(old, was, r.Before), state(now, is, r.After)
	p := report.ComparePlan(before, after, node.Build(now, nil), false)
	p.Objects, p.Err = objects(before, after, old, now)
	return p
}

// objects returns the kernel objects that change. Another mode makes all its own.
func objects(before, after *policy.State, old, now configs.Settings) ([]proxier.Change, error) {
	from, to := modeOf(old), modeOf(now)
	if from.Name == to.Name {
		return to.Compare(before, after, now)
	}
	empty := func(st *policy.State) *policy.State {
		return &policy.State{Family: st.Family, Host: st.Host}
	}
	gone, err := from.Compare(before, empty(before), old)
	came, more := to.Compare(empty(after), after, now)
	return slices.Concat(came, gone), cmp.Or(err, more)
}
