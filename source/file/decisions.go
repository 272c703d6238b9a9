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
	before       map[string]*read.Version   // in use when it began, by file name; of an earlier run only with its id
	refused      map[string][32]byte        // handed on when it began, and not in use for another file has what they claim
	kept         map[string][]*read.Version // as of decisions, when it began
	back         bool                       // it was not confirmed in time while no process ran: the first look goes back
}

// An overdue is a trial that went back, until a client confirms: that may be too late for it,
// and is not meant for what is held by then.
type overdue struct{ began, back time.Time }

// lists returns the versions of lists that services keep, or did when the trial began.
func (d *decisions) lists() (all []*read.Version) {
	for _, lists := range d.kept {
		all = append(all, lists...)
	}
	if d.trial != nil {
		for _, lists := range d.trial.kept {
			all = append(all, lists...)
		}
	}
	return all
}

// needs returns the versions that must not be dropped, and the texts of lists that may have no copy yet.
func (d *decisions) needs() (needed map[keep.Version]bool, texts map[keep.Version][]byte) {
	needed, texts = map[keep.Version]bool{}, map[keep.Version][]byte{}
	for name, p := range d.pins {
		needed[keep.Version{Name: name, Sum: p.use}] = true
	}
	for _, l := range d.lists() {
		v := keep.Version{Name: filepath.Base(l.Path), Sum: l.ID}
		if needed[v] = true; l.List != nil {
			texts[v] = l.List.Text()
		}
	}
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
		Pins  []pinText           `json:"pins,omitempty"`
		Apply *trialText          `json:"apply,omitempty"`
		Back  *overdueText        `json:"back,omitempty"`
		Kept  map[string][]string `json:"kept,omitempty"`
		Lists []struct {          // as earlier versions of svcproxy had it
			Lists map[string]string `json:"lists"`
		} `json:"lists,omitempty"`
	}
	pinText struct {
		File  string           `json:"file"`
		State source.FileState `json:"state"`
		Found string           `json:"found,omitempty"`
		Use   string           `json:"use,omitempty"`
		Since time.Time        `json:"since"`
		Why   string           `json:"why"`
	}
	trialText struct {
		Began   time.Time           `json:"began"`
		Until   time.Time           `json:"until"`
		Boot    string              `json:"boot"`
		Before  map[string]string   `json:"before"`
		Refused map[string]string   `json:"refused,omitempty"`
		Kept    map[string][]string `json:"kept,omitempty"`
	}
	overdueText struct {
		Began time.Time `json:"began"`
		Back  time.Time `json:"back"`
	}
)

const decisionsHeader = "svcproxy decisions 1 "

// encode returns what is to be kept.
func (d *decisions) encode() []byte {
	var t decisionsText
	for _, name := range sortedNames(d.pins) {
		p := d.pins[name]
		t.Pins = append(t.Pins, pinText{name, p.state, read.IDText(p.found), read.IDText(p.use), p.since, p.why})
	}
	if tr := d.trial; tr != nil {
		t.Apply = &trialText{tr.began, tr.until, tr.boot, map[string]string{}, map[string]string{}, idTexts(tr.kept)}
		for name, v := range tr.before {
			t.Apply.Before[name] = read.IDText(v.ID)
		}
		for name, id := range tr.refused {
			t.Apply.Refused[name] = read.IDText(id)
		}
	}
	t.Kept = idTexts(d.kept)
	if o := d.overdue; o != nil {
		t.Back = &overdueText{o.began, o.back}
	}
	text, err := json.Marshal(t)
	if err != nil {
		panic(err) // strings and times only
	}
	return fmt.Appendf(nil, "%s%08x\n%s\n", decisionsHeader, crc32.ChecksumIEEE(text), text)
}

func idTexts(kept map[string][]*read.Version) map[string][]string {
	texts := map[string][]string{}
	for name, lists := range kept {
		for _, l := range lists {
			texts[name] = append(texts[name], read.IDText(l.ID))
		}
	}
	return texts
}

// keptOf reads what idTexts wrote. Of lists there are only names, see Source.loadLists.
func keptOf(texts map[string][]string) map[string][]*read.Version {
	kept := map[string][]*read.Version{}
	for name, ids := range texts {
		for _, text := range ids {
			if id, ok := read.ParseID(text); ok && read.IsFileName(name) {
				kept[name] = append(kept[name], &read.Version{ID: id, Path: name})
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
	if string(head) != fmt.Sprintf("%s%08x", decisionsHeader, crc32.ChecksumIEEE(text)) {
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
	d.kept = keptOf(t.Kept)
	for _, l := range t.Lists {
		for name, id := range sumsOf(l.Lists) {
			d.kept[name] = append(d.kept[name], &read.Version{ID: id, Path: name})
		}
	}
	if t.Back != nil {
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
