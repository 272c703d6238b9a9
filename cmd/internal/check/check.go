// Package check reads settings and service files as the daemon would, and says
// all that is wrong with them: a Checker makes a Report. It touches nothing.
package check

import (
	"bytes"
	"cmp"
	"errors"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"svcproxy.dev/svcproxy/cmd/internal/node"
	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/internal/trust"
	"svcproxy.dev/svcproxy/proxier/claims"
	"svcproxy.dev/svcproxy/proxier/report"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/disk"
	"svcproxy.dev/svcproxy/source/file"
	"svcproxy.dev/svcproxy/source/keep"
	"svcproxy.dev/svcproxy/source/read"
)

const (
	// Stdin is the path of standard input.
	Stdin = "-"

	stdinName = "<stdin>" // in messages
)

// A Checker says what is wrong with files.
type Checker struct {
	ConfigDir string
	StateDir  string // says which files of ConfigDir were accepted, and when; empty: none
	Stdin     io.Reader

	// Load reads a settings file. One that does not exist gives the defaults.
	Load func(path string) (configs.Settings, []source.Fault, error)

	// Rules returns what service files are held to under settings.
	Rules func(configs.Settings) read.Rules

	// Host returns what a daemon with these settings finds on this host, which is where
	// files of ConfigDir are for; nil: that is not known.
	Host func(configs.Settings) report.Snapshot

	// ModeInUse returns the mode of the daemon that reads ConfigDir; empty, also where it is nil: not known.
	ModeInUse func() string

	stdin []byte // as it was read
}

// A Report is what was read of something, and what is wrong with it.
type Report struct {
	Files, Services int // service files, and what is in them

	Faults     []source.Fault
	Unreadable bool // something could not be read; a fault says what and why
}

func (r *Report) add(files ...read.File) {
	for _, f := range files {
		r.Faults = append(r.Faults, f.Faults...)
		r.Unreadable = r.Unreadable || f.Unreadable
		r.Files, r.Services = r.Files+1, r.Services+len(f.Services)
	}
}

// unreadable reports that path could not be read.
func (r *Report) unreadable(path string, err error) {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		path = pe.Path
	}
	r.Faults = append(r.Faults, read.UnreadableFault(path, err))
	r.Unreadable = true
}

// OfDaemon reports whether what is at path is what a daemon reads, or about to become so.
func (c *Checker) OfDaemon(path string) bool {
	return path == Stdin || SameDir(path, c.ConfigDir) || SameDir(filepath.Dir(path), c.ConfigDir)
}

// Path returns every fault of what is at path. A directory is checked as one to
// configure from. A service file is checked alone or, when it lies in the
// configuration directory, against what else is there, as one that came last.
// Standard input is checked as if it were to become a new file there.
func (c *Checker) Path(path string) (r Report) {
	if path == Stdin {
		c.standardInput(&r)
		return r
	}
	info, err := disk.Stat(path)
	switch {
	case err != nil && read.IsTextName(path):
		c.text(path, &r)
	case err != nil:
		r.unreadable(path, err)
	case filepath.Base(path) == read.SettingsName:
		c.settings(path, &r)
	case info.IsDir() && !c.knownIn(filepath.Dir(path))[filepath.Base(path)]:
		c.directory(path, &r)
	case SameDir(filepath.Dir(path), c.ConfigDir):
		beside := c.beside(filepath.Base(path), &r)
		f := beside.itself
		if f == nil || !f.OfEndpoints() { // what a list is good for, files beside it say
			f = new(read.File)
			*f = beside.rules.ReadFile(path)
		}
		beside.last(*f, &r)
	default:
		alone := c.setting(c.ConfigDir, new(Report))
		alone.reserved, alone.rules.GuardPrograms, alone.rules.From.Elsewhere = nil, false, true
		alone.last(alone.rules.ReadFile(path), &r)
	}
	return r
}

// text checks the last good version of a text of a server. One that needs a signature had it.
func (c *Checker) text(name string, r *Report) {
	in := c.setting(c.ConfigDir, new(Report))
	err := fs.ErrNotExist
	for _, of := range in.settings.Sources {
		var data []byte
		if data, err = keep.LastGood(keep.SourceDir(c.StateDir, of), name); err == nil {
			in.rules.From = read.Origin{URL: name, Signed: true}
			f, _ := in.rules.ReadText(name, c.ConfigDir, bytes.NewReader(data))
			r.add(f)
			return
		}
	}
	r.unreadable(name, err)
}

// A setting is what a file is read and judged in.
type setting struct {
	rules    read.Rules
	reserved []netip.AddrPort
	others   []read.File
	itself   *read.File // the file that the others are beside, if it was found there
	settings configs.Settings
	host     report.Snapshot // where files of the configuration directory matter; else nothing

	dir      string        // the configuration directory, where it matters; else empty
	accepted []source.Unit // last good versions of its files
}

// id names a file, however its path was given.
func (in setting) id(f read.File) source.UnitID {
	if in.dir == "" {
		return source.UnitID{Source: file.Name, Name: f.Path}
	}
	return source.UnitID{Source: file.Name, Name: filepath.Join(in.dir, filepath.Base(f.Path))}
}

// readDir reads the files of a directory. Where that is the configuration directory it takes up what the host and the state
// directory say of them, so that what is theirs stays theirs, as the daemon has it.
func (c *Checker) readDir(in *setting, dir string) ([]read.File, error) {
	if !SameDir(dir, c.ConfigDir) {
		return in.rules.ReadDir(dir, nil)
	}
	units, before := file.Recall(in.rules, dir, c.StateDir)
	in.rules.Before = before
	files, err := in.rules.ReadDir(dir, c.knownIn(dir))
	if err != nil {
		return nil, err
	}
	if c.Host != nil {
		in.host = c.Host(in.settings)
	}
	if c.StateDir != "" {
		in.dir = dir
	}
	for _, f := range files {
		if u, known := units[filepath.Base(f.Path)]; known {
			in.accepted = append(in.accepted, u)
		}
	}
	return files, nil
}

// knownIn returns the names of files of which the state directory keeps a last good version, where dir is the configuration directory.
func (c *Checker) knownIn(dir string) map[string]bool {
	if c.StateDir == "" || !SameDir(dir, c.ConfigDir) {
		return nil
	}
	return keep.Recorded(c.StateDir)
}

// tracker returns one that holds what was accepted, and then these files.
func (in setting) tracker(files []read.File) *claims.Tracker {
	t := claims.NewTracker(in.reserved)
	t.Limit(in.rules.Limits.Products())
	t.Apply(source.Changes{Set: in.accepted})
	t.Apply(source.Changes{Set: in.units(files)})
	return t
}

// settings checks a settings file, and returns what it says.
func (c *Checker) settings(path string, r *Report) configs.Settings {
	s, faults, err := c.Load(path)
	if err != nil {
		r.unreadable(path, err)
	}
	r.Faults = append(r.Faults, faults...)
	r.Faults = append(r.Faults, s.BGP.CheckPasswords(path)...)
	return s
}

// setting returns what the settings of a directory make. Where they are broken
// nobody knows the mode, and what any mode can do is good. Where they leave the mode
// of the configuration directory open, it is the one of the daemon, if that is known.
func (c *Checker) setting(dir string, r *Report) setting {
	var found Report
	s := c.settings(filepath.Join(dir, read.SettingsName), &found)
	if s.Mode == configs.Auto && c.ModeInUse != nil && SameDir(dir, c.ConfigDir) {
		s.Mode = cmp.Or(c.ModeInUse(), s.Mode)
	}
	in := setting{rules: c.Rules(s), reserved: node.Reserved(s), settings: s}
	in.rules.GuardPrograms = s.Health.ExecUser == "" && SameDir(dir, c.ConfigDir)
	in.rules.From.Elsewhere = !SameDir(dir, c.ConfigDir)
	if found.Unreadable || source.AnyError(found.Faults) {
		in.rules.Check = nil
	}
	r.Faults, r.Unreadable = append(r.Faults, found.Faults...), r.Unreadable || found.Unreadable
	return in
}

// directory checks the settings of dir, every file, and all files together.
func (c *Checker) directory(dir string, r *Report) {
	in := c.setting(dir, r)
	files, err := c.readDir(&in, dir)
	if err != nil {
		r.unreadable(dir, err)
		return
	}
	r.add(files...)
	r.Faults = append(r.Faults, file.CheckDir(dir, c.knownIn(dir), in.rules.Shared())...)
	t := in.tracker(files)
	r.Faults = append(r.Faults, refusals(t, "")...)
	r.Faults = append(r.Faults, in.doubts(t, files...)...)
	r.Faults = append(r.Faults, in.affinity(dir, files)...)
}

// affinity says where all files together ask a mode for more session affinity than
// it can do, or warns where it does not do that well.
func (in setting) affinity(dir string, files []read.File) []source.Fault {
	lists := 0
	for _, f := range files {
		for _, s := range f.Services {
			lists += configs.AffinityLists(s)
		}
	}
	if msg := configs.RefuseLists(lists, in.settings.Mode); msg != "" {
		return []source.Fault{{Pos: source.Position{File: dir}, Msg: msg, Hint: "leave it out of some, or use nftables mode"}}
	}
	if w := configs.WarnLists(lists, in.settings.Mode); w != "" {
		return []source.Fault{{Pos: source.Position{File: dir}, Msg: w, Warning: true}}
	}
	return nil
}

// beside returns what a file called name has beside it in the configuration
// directory, whose faults do not concern it. One that does not exist holds nothing.
func (c *Checker) beside(name string, r *Report) setting {
	var settings Report
	in := c.setting(c.ConfigDir, &settings)
	if settings.Unreadable {
		r.Faults, r.Unreadable = append(r.Faults, settings.Faults...), true
	}
	files, err := c.readDir(&in, c.ConfigDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		r.unreadable(c.ConfigDir, err)
	}
	if i := slices.IndexFunc(files, func(f read.File) bool { return filepath.Base(f.Path) == name }); i >= 0 {
		itself := files[i]
		in.itself = &itself
	}
	in.others = slices.DeleteFunc(files, func(f read.File) bool { return filepath.Base(f.Path) == name })
	return in
}

// standardInput checks a text of which only the contents are known.
func (c *Checker) standardInput(r *Report) {
	in := c.beside("", r)
	if len(in.settings.Owners) > 0 {
		in.rules.Owners = nil
		r.Faults = append(r.Faults, source.Fault{
			Pos: source.Position{File: stdinName}, Warning: true,
			Msg:  "shares of [[owners]] are not checked, for a text has no name and no owner",
			Hint: "check it as a file of the name that it will have",
		})
	}
	f, text := in.rules.ReadText(stdinName, c.ConfigDir, c.Stdin)
	c.stdin = text
	in.last(f, r)
}

// last checks a file that came after others. What they claim is theirs.
func (in setting) last(f read.File, r *Report) {
	r.add(f)
	t := in.tracker(in.others)
	t.Apply(source.Changes{Set: in.units([]read.File{f})})
	r.Faults = append(r.Faults, refusals(t, in.id(f).Name)...)
	r.Faults = append(r.Faults, in.doubts(t, f)...)
}

// doubts warns of what is wrong with services of files for what other services, and
// processes of this host, are.
func (in setting) doubts(t *claims.Tracker, files ...read.File) []source.Fault {
	of := map[source.Key]bool{}
	for _, f := range files {
		for _, s := range f.Services {
			of[s.Key] = true
		}
	}
	var faults []source.Fault
	in.host.Services = t.Snapshot().Services
	for _, d := range report.Doubts(&in.host, nil) {
		if of[d.Key] {
			faults = append(faults, d.Fault())
		}
	}
	SortByPlace(faults)
	return faults
}

// bom is the byte order mark, which columns do not count.
var bom = []byte("\ufeff")

// Text returns the text that a fault is about, nil when it cannot be read any more, or a link to it belongs to another
// user, who may have no right to read it.
func (c *Checker) Text(name string) []byte {
	if name == stdinName {
		return bytes.TrimPrefix(c.stdin, bom)
	}
	f, info, err := disk.Open(name)
	if err != nil {
		return nil
	}
	defer f.Close()
	text, err := io.ReadAll(f)
	if st, ok := info.Sys().(*syscall.Stat_t); err != nil || !ok || trust.LinksTo(name, st.Uid) != trust.OwnLinks {
		return nil
	}
	return bytes.TrimPrefix(text, bom)
}

// units returns the files that can be used.
func (in setting) units(files []read.File) []source.Unit {
	since := make(map[source.UnitID]int64)
	for _, u := range in.accepted {
		since[u.ID] = u.Since
	}
	var out []source.Unit
	for _, f := range files {
		if u, news := f.Unit(in.id(f)); news {
			u.Since = since[u.ID]
			out = append(out, u)
		}
	}
	return out
}

// refusals returns why a file, or any file if path is empty, cannot be used
// together with the others, in order of place.
func refusals(t *claims.Tracker, path string) []source.Fault {
	var faults []source.Fault
	for _, r := range t.Refusals() {
		if path == "" || r.Unit.Name == path {
			faults = append(faults, r.Faults...)
		}
	}
	SortByPlace(faults)
	return faults
}

// SortByPlace sorts faults by file, line and column; those of one place stay in their order.
func SortByPlace(faults []source.Fault) {
	slices.SortStableFunc(faults, func(a, b source.Fault) int {
		return cmp.Or(cmp.Compare(a.Pos.File, b.Pos.File), cmp.Compare(a.Pos.Line, b.Pos.Line), cmp.Compare(a.Pos.Col, b.Pos.Col))
	})
}

// SameDir reports whether two paths lead to one directory.
func SameDir(a, b string) bool {
	ai, err := disk.Stat(a)
	if err != nil {
		return false
	}
	bi, err := disk.Stat(b)
	return err == nil && os.SameFile(ai, bi)
}
