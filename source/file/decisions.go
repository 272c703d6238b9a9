package file

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"time"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/keep"
	"svcproxy.dev/svcproxy/source/read"
)

// Decisions are what the admin, or the guard, decided about versions of files, against
// what the files say. They outlive the process: a held change stays held, an
// older version stays in use, and what was applied on trial goes back.
type decisions struct {
	pins    map[string]*pin            // by file name
	trial   *trial                     // nil: there is none
	overdue *overdue                   // nil: a client has been told, or there is none
	kept    map[string][]*read.Version // of lists, by name, what services keep in place of those in use; the newest last

	changed bool                       // since text, perhaps
	text    []byte                     // as last handed to the store
	written map[string][]*read.Version // kept, as the disk has it
}

// pin notes what was decided of a file.
func (d *decisions) pin(name string, p *pin) {
	d.changed = d.changed || d.pins[name] != p
	d.pins[name] = p
}

// unpin forgets it.
func (d *decisions) unpin(name string) {
	d.changed = d.changed || d.pins[name] != nil
	delete(d.pins, name)
}

// try notes what is on trial; nil: nothing.
func (d *decisions) try(t *trial) { d.trial, d.changed = t, true }

// end notes that what is on trial went back, now.
func (d *decisions) end() {
	d.overdue = &overdue{d.trial.Began, time.Now()}
	d.try(nil)
}

// A trial is an apply that nobody has confirmed yet.
type trial struct {
	Began   time.Time                  `json:"began"`
	Until   time.Time                  `json:"until"`
	Boot    string                     `json:"boot"`
	Before  map[string]*read.Version   `json:"before"`            // in use when it began, by file name; of an earlier run only with its id
	Refused map[string]id              `json:"refused,omitempty"` // handed on when it began, and not in use for another file has what they claim
	Kept    map[string][]*read.Version `json:"kept,omitempty"`    // as of decisions, when it began
	back    bool                       // it was not confirmed in time while no process ran: the first look goes back
}

// An overdue is a trial that went back, until a client confirms: that may be too late for it,
// and is not meant for what is held by then.
type overdue struct {
	Began time.Time `json:"began"`
	Back  time.Time `json:"back"`
}

// An id is that of a version. Zero: there is none.
type id [sha256.Size]byte

// MarshalText implements encoding.TextMarshaler.
func (i id) MarshalText() ([]byte, error) { return []byte(read.IDText(i)), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (i *id) UnmarshalText(text []byte) error {
	sum, ok := read.ParseID(string(text))
	if *i = sum; !ok {
		return keep.ErrDamaged
	}
	return nil
}

// lists returns the versions of lists that services keep, or did when the trial began.
func (d *decisions) lists() (all []*read.Version) {
	for _, lists := range d.kept {
		all = append(all, lists...)
	}
	if d.trial != nil {
		for _, lists := range d.trial.Kept {
			all = append(all, lists...)
		}
	}
	return all
}

// needs returns the versions that must not be dropped, and the texts of lists that may have no copy yet.
func (d *decisions) needs() (needed map[keep.Version]bool, texts map[keep.Version][]byte) {
	needed, texts = map[keep.Version]bool{}, map[keep.Version][]byte{}
	for name, p := range d.pins {
		needed[keep.Version{Name: name, Sum: p.Use}] = true
	}
	for _, l := range d.lists() {
		v := keep.Version{Name: filepath.Base(l.Path), Sum: l.ID}
		if needed[v] = true; l.List != nil {
			texts[v] = l.List.Text()
		}
	}
	if d.trial != nil {
		for name, v := range d.trial.Before {
			needed[keep.Version{Name: name, Sum: v.ID}] = true
		}
	}
	return needed, texts
}

// keptDecisions are decisions as they are kept.
type keptDecisions struct {
	Pins  []pin                      `json:"pins,omitempty"`
	Apply *trial                     `json:"apply,omitempty"`
	Back  *overdue                   `json:"back,omitempty"`
	Kept  map[string][]*read.Version `json:"kept,omitempty"`
	Lists []struct {                 // as earlier versions of svcproxy had kept
		Lists map[string]*read.Version `json:"lists"`
	} `json:"lists,omitempty"`
}

const decisionsHeader = "svcproxy decisions 1 "

// encode returns what is to be kept.
func (d *decisions) encode() []byte {
	k := keptDecisions{Apply: d.trial, Back: d.overdue, Kept: d.kept}
	for _, name := range sortedNames(d.pins) {
		p := *d.pins[name]
		p.File = name
		k.Pins = append(k.Pins, p)
	}
	text, err := json.Marshal(k)
	if err != nil {
		panic(err) // strings and times only
	}
	return fmt.Appendf(nil, "%s%08x\n%s\n", decisionsHeader, crc32.ChecksumIEEE(text), text)
}

// parseDecisions reads what encode wrote. Of lists there are only names, see lists.loadLists.
func parseDecisions(data []byte) (d decisions, err error) {
	d.pins = map[string]*pin{}
	head, text, _ := bytes.Cut(data, []byte("\n"))
	text = bytes.TrimSuffix(text, []byte("\n"))
	if string(head) != fmt.Sprintf("%s%08x", decisionsHeader, crc32.ChecksumIEEE(text)) {
		return d, keep.ErrDamaged
	}
	var k keptDecisions
	if err := json.Unmarshal(text, &k); err != nil {
		return d, err
	}
	for _, p := range k.Pins {
		if read.IsKeptName(p.File) {
			d.pins[p.File] = &p
		}
	}
	d.trial, d.overdue, d.kept = k.Apply, k.Back, map[string][]*read.Version{}
	addLists(d.kept, k.Kept)
	for _, l := range k.Lists {
		for name, v := range l.Lists {
			addLists(d.kept, map[string][]*read.Version{name: {v}})
		}
	}
	if t := d.trial; t != nil {
		kept, before := t.Kept, t.Before
		t.Kept, t.Before = map[string][]*read.Version{}, map[string]*read.Version{}
		addLists(t.Kept, kept)
		for name, v := range before {
			if v != nil && read.IsKeptName(name) {
				t.Before[name] = v
			}
		}
	}
	return d, nil
}

// addLists adds versions of lists to others, with their names.
func addLists(to, kept map[string][]*read.Version) {
	for name, lists := range kept {
		for _, v := range lists {
			if v != nil && read.IsFileName(name) {
				v.Path = name
				to[name] = append(to[name], v)
			}
		}
	}
}

func sortedNames[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// A pin says that one version of a file is not used when it is found. It goes
// when another one counts.
type pin struct {
	File  string           `json:"file"`           // set where it is kept
	State source.FileState `json:"state"`          // source.Held or source.RolledBack
	Found id               `json:"found,omitzero"` // the version; zero: that there is no file
	Use   id               `json:"use,omitzero"`   // RolledBack: what is used instead; zero: nothing
	Since time.Time        `json:"since"`
	Why   string           `json:"why"` // for people
}

// A hold says why the present version of a file is not used.
type hold struct {
	pin
	services []source.Key // that it would remove
	told     bool         // it is in the log
}

// faults returns what a status says of h.
func (h *hold) faults(path string) []source.Fault {
	if h == nil {
		return nil
	}
	f := source.Fault{Pos: source.Position{File: path}, Msg: "this change is held: " + h.Why, Hint: "svcproxy confirm lets it through"}
	if h.State == source.RolledBack {
		f.Msg, f.Hint, f.Warning = h.Why, "it is used until the file changes", true
	}
	return []source.Fault{f}
}

// maxHeldLines is how many files that one step holds have a line of the log each.
const maxHeldLines = 10

// log tells once.
func (h *hold) log(log *slog.Logger, path string) {
	if h.told {
		return
	}
	h.told = true
	if h.State == source.RolledBack {
		log.Info("service file rolled back", "file", path, "why", h.Why)
		return
	}
	log.Warn("holding a change of a service file; its services keep the last accepted version until svcproxy confirm", "file", path, "why", h.Why)
}
