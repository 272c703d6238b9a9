package file

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
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
	pins    map[string]*pin       // by file name
	trial   *trial                // nil: there is none
	overdue *overdue              // nil: a client has been told, or there is none
	kept    map[string][]keptList // by name of the service file

	changed bool   // since text, perhaps
	text    []byte // as last handed to the store
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

// know reports whether something is decided of a file.
func (d *decisions) know(name string) bool {
	if p := d.pins[name]; p != nil && p.state == source.RolledBack {
		return true
	}
	return d.trial != nil && d.trial.before[name] != nil
}

// end notes that what is on trial went back, now.
func (d *decisions) end() {
	d.overdue = &overdue{d.trial.began, time.Now()}
	d.try(nil)
}

// A trial is an apply that nobody has confirmed yet.
type trial struct {
	began, until time.Time
	boot         string
	before       map[string]*read.Version // in use when it began, by file name; of an earlier run only with its id
	refused      map[string][32]byte      // handed on when it began, and not in use for another file has what they claim
	kept         map[string][]keptList    // what services kept when it began, by file name
	back         bool                     // it was not confirmed in time while no process ran: the first look goes back
}

// An overdue is a trial that went back, until a client confirms: that may be too late for it,
// and is not meant for what is held by then.
type overdue struct{ began, back time.Time }

// A keptList is a version of a list that services keep, because a newer one does not fit them. It is so recorded before the
// newer one is.
type keptList struct {
	of       [sha256.Size]byte // the version of the service file
	list     *read.Version
	services []string // their keys, sorted; nil: all that refer to the list
}

// eachKept calls visit with all lists that services keep, or did when the trial began.
func (d *decisions) eachKept(visit func(*keptList)) {
	visitAll := func(kept map[string][]keptList) {
		for _, lists := range kept {
			for i := range lists {
				visit(&lists[i])
			}
		}
	}
	if visitAll(d.kept); d.trial != nil {
		visitAll(d.trial.kept)
	}
}

// needs returns the versions that must not be dropped, and the texts of lists that may have no copy yet.
func (d *decisions) needs() (needed map[keep.Version]bool, texts map[keep.Version][]byte) {
	needed, texts = map[keep.Version]bool{}, map[keep.Version][]byte{}
	for name, p := range d.pins {
		needed[keep.Version{Name: name, Sum: p.use}] = true
	}
	d.eachKept(func(k *keptList) {
		v := keep.Version{Name: filepath.Base(k.list.Path), Sum: k.list.ID}
		if needed[v] = true; k.list.List != nil {
			texts[v] = k.list.List.Text()
		}
	})
	if d.trial != nil {
		for name, v := range d.trial.before {
			needed[keep.Version{Name: name, Sum: v.ID}] = true
		}
	}
	return needed, texts
}

// As they are kept.
type (
	decisionsText struct {
		Pins  []pinText    `json:"pins,omitempty"`
		Apply *trialText   `json:"apply,omitempty"`
		Back  *overdueText `json:"back,omitempty"`
		Lists []listsText  `json:"lists,omitempty"`
	}
	pinText struct {
		File  string           `json:"file"`
		State source.FileState `json:"state"`
		Found string           `json:"found,omitempty"`
		Use   string           `json:"use,omitempty"`
		Since time.Time        `json:"since"`
		Why   string           `json:"why"`
	}
	listsText struct {
		File     string            `json:"file"`
		Of       string            `json:"of"` // the version of the file
		Lists    map[string]string `json:"lists"`
		Services []string          `json:"services,omitempty"` // none: all that refer to these lists, as the first versions had it
	}
	trialText struct {
		Began   time.Time         `json:"began"`
		Until   time.Time         `json:"until"`
		Boot    string            `json:"boot"`
		Before  map[string]string `json:"before"`
		Refused map[string]string `json:"refused,omitempty"`
		Kept    []listsText       `json:"kept,omitempty"`
	}
	overdueText struct {
		Began time.Time `json:"began"`
		Back  time.Time `json:"back"`
	}
)

// The header of decisions says how they are written: as 1, or as 2 where services keep lists, which programs that know 1 only
// would take for something else.
const decisionsHeader = "svcproxy decisions %d %08x"

// errNewer says that this program is too old for what was kept.
var errNewer = errors.New("it was written by a newer version of svcproxy")

// encode returns what is to be kept.
func (d *decisions) encode() []byte {
	var t decisionsText
	for _, name := range sortedNames(d.pins) {
		p := d.pins[name]
		t.Pins = append(t.Pins, pinText{name, p.state, read.IDText(p.found), read.IDText(p.use), p.since, p.why})
	}
	if tr := d.trial; tr != nil {
		t.Apply = &trialText{tr.began, tr.until, tr.boot, map[string]string{}, map[string]string{}, listsTexts(tr.kept)}
		for name, v := range tr.before {
			t.Apply.Before[name] = read.IDText(v.ID)
		}
		for name, id := range tr.refused {
			t.Apply.Refused[name] = read.IDText(id)
		}
	}
	version := 1
	if t.Lists = listsTexts(d.kept); len(t.Lists) > 0 || t.Apply != nil && len(t.Apply.Kept) > 0 {
		version = 2
	}
	if o := d.overdue; o != nil {
		t.Back = &overdueText{o.began, o.back}
	}
	text, err := json.Marshal(t)
	if err != nil {
		panic(err) // strings and times only
	}
	return fmt.Appendf(nil, decisionsHeader+"\n%s\n", version, crc32.ChecksumIEEE(text), text)
}

func listsTexts(kept map[string][]keptList) (texts []listsText) {
	for _, name := range sortedNames(kept) {
		for _, k := range kept[name] {
			texts = append(texts, listsText{name, read.IDText(k.of), map[string]string{filepath.Base(k.list.Path): read.IDText(k.list.ID)}, k.services})
		}
	}
	return texts
}

// keptOf reads what listsTexts wrote. Of lists there are only names, see Source.loadLists.
func keptOf(texts []listsText) map[string][]keptList {
	kept := map[string][]keptList{}
	for _, t := range texts {
		of, ok := read.ParseID(t.Of)
		for name, sum := range sumsOf(t.Lists) {
			if ok && read.IsFileName(t.File) {
				kept[t.File] = append(kept[t.File], keptList{of, &read.Version{ID: sum, Path: name}, t.Services})
			}
		}
	}
	return kept
}

// parseDecisions reads what encode wrote.
func parseDecisions(data []byte) (d decisions, err error) {
	d.pins = map[string]*pin{}
	head, text, _ := bytes.Cut(data, []byte("\n"))
	text = bytes.TrimSuffix(text, []byte("\n"))
	var version int
	var sum uint32
	switch _, err := fmt.Sscanf(string(head), decisionsHeader, &version, &sum); {
	case err == nil && version > 2:
		return d, errNewer
	case err != nil || version < 1 || sum != crc32.ChecksumIEEE(text):
		return d, keep.ErrDamaged
	}
	var t decisionsText
	if err := json.Unmarshal(text, &t); err != nil {
		return d, err
	}
	for _, p := range t.Pins {
		found, ok1 := read.ParseID(p.Found)
		use, ok2 := read.ParseID(p.Use)
		if read.IsFileName(p.File) && (ok1 || p.Found == "") && (ok2 || p.Use == "") {
			d.pins[p.File] = &pin{p.State, found, use, p.Since, p.Why}
		}
	}
	if d.kept = keptOf(t.Lists); t.Back != nil {
		d.overdue = &overdue{t.Back.Began, t.Back.Back}
	}
	if t.Apply != nil {
		d.trial = &trial{began: t.Apply.Began, until: t.Apply.Until, boot: t.Apply.Boot, before: map[string]*read.Version{}, refused: sumsOf(t.Apply.Refused)}
		d.trial.kept = keptOf(t.Apply.Kept)
		for name, sum := range sumsOf(t.Apply.Before) {
			d.trial.before[name] = &read.Version{ID: sum}
		}
	}
	return d, nil
}

// sumsOf returns versions by the names of files, where they can be such.
func sumsOf(texts map[string]string) map[string][sha256.Size]byte {
	sums := map[string][sha256.Size]byte{}
	for name, text := range texts {
		if sum, ok := read.ParseID(text); ok && read.IsFileName(name) {
			sums[name] = sum
		}
	}
	return sums
}

func sortedNames[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// A pin says that one version of a file is not used when it is found. It goes
// when another one counts.
type pin struct {
	state source.FileState  // source.Held or source.RolledBack
	found [sha256.Size]byte // the version; zero: that there is no file
	use   [sha256.Size]byte // RolledBack: what is used instead; zero: nothing
	since time.Time
	why   string // for people
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
	f := source.Fault{Pos: source.Position{File: path}, Msg: "this change is held: " + h.why, Hint: "svcproxy confirm lets it through"}
	if h.state == source.RolledBack {
		f.Msg, f.Hint, f.Warning = h.why, "it is used until the file changes", true
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
	if h.state == source.RolledBack {
		log.Info("service file rolled back", "file", path, "why", h.why)
		return
	}
	log.Warn("holding a change of a service file; its services keep the last accepted version until svcproxy confirm", "file", path, "why", h.why)
}
