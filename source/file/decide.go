package file

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"svcproxy.dev/svcproxy/source"
)

// Decisions are what the admin, or the guard, decided about versions of files, against
// what the files say. They outlive the process: a held change stays held, an
// older version stays in use, and what was applied on trial goes back.
type decisions struct {
	pins  map[string]*pin // by file name
	trial *trial          // nil: there is none

	text []byte // as last handed to the store
}

// A pin says that one version of a file is not used when it is found. It goes
// when another one counts.
type pin struct {
	state source.FileState  // source.Held or source.RolledBack
	found [sha256.Size]byte // the version; zero: that there is no file
	use   [sha256.Size]byte // RolledBack: what is used instead; zero: nothing
	since time.Time
	why   string // for people
}

// A trial is an apply that nobody has confirmed yet.
type trial struct {
	began, until time.Time
	boot         string
	before       map[string]*version // in use when it began, by file name; of an earlier run only with its id
	back         bool                // it was not confirmed in time while no process ran: the first look goes back
}

// As they are kept.
type (
	decisionsText struct {
		Pins  []pinText  `json:"pins,omitempty"`
		Apply *trialText `json:"apply,omitempty"`
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
		Began  time.Time         `json:"began"`
		Until  time.Time         `json:"until"`
		Boot   string            `json:"boot"`
		Before map[string]string `json:"before"`
	}
)

const (
	decisionsFile   = "decisions" // beside the index of the store
	decisionsHeader = "svcproxy decisions 1 "
)

// encode returns what is to be kept.
func (d *decisions) encode() []byte {
	var t decisionsText
	for _, name := range sortedNames(d.pins) {
		p := d.pins[name]
		t.Pins = append(t.Pins, pinText{name, p.state, sumText(p.found), sumText(p.use), p.since, p.why})
	}
	if tr := d.trial; tr != nil {
		t.Apply = &trialText{tr.began, tr.until, tr.boot, map[string]string{}}
		for name, v := range tr.before {
			t.Apply.Before[name] = sumText(v.id)
		}
	}
	text, err := json.Marshal(t)
	if err != nil {
		panic(err) // strings and times only
	}
	return fmt.Appendf(nil, "%s%08x\n%s\n", decisionsHeader, crc32.ChecksumIEEE(text), text)
}

// parseDecisions reads what encode wrote.
func parseDecisions(data []byte) (d decisions, err error) {
	d.pins = map[string]*pin{}
	head, text, _ := bytes.Cut(data, []byte("\n"))
	text = bytes.TrimSuffix(text, []byte("\n"))
	if string(head) != fmt.Sprintf("%s%08x", decisionsHeader, crc32.ChecksumIEEE(text)) {
		return d, errDamaged
	}
	var t decisionsText
	if err := json.Unmarshal(text, &t); err != nil {
		return d, err
	}
	for _, p := range t.Pins {
		found, ok1 := parseSum(p.Found)
		use, ok2 := parseSum(p.Use)
		if isFileName(p.File) && (ok1 || p.Found == "") && (ok2 || p.Use == "") {
			d.pins[p.File] = &pin{p.State, found, use, p.Since, p.Why}
		}
	}
	if t.Apply != nil {
		d.trial = &trial{began: t.Apply.Began, until: t.Apply.Until, boot: t.Apply.Boot, before: map[string]*version{}}
		for name, text := range t.Apply.Before {
			if sum, ok := parseSum(text); ok && isFileName(name) {
				d.trial.before[name] = &version{id: sum}
			}
		}
	}
	return d, nil
}

func isFileName(name string) bool { return isServiceFile(name) && !strings.ContainsAny(name, "/\x00") }

// loadDecisions takes up what an earlier run kept. An apply that it did not see confirmed
// goes back at once where the time is over, or the host has started again since.
func (s *Source) loadDecisions(now time.Time) {
	path := filepath.Join(s.store.dir, decisionsFile)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	d, err2 := parseDecisions(data)
	if err = cmp.Or(err, err2); err != nil {
		s.log.Error("what was held, rolled back or applied on trial is not known any more", "file", path, "err", err)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	d.text = data
	if t := d.trial; t != nil {
		t.until = earlier(t.until, now.Add(t.until.Sub(t.began))) // the clock was set back
		t.back = t.boot != bootText() || !now.Before(t.until)
	}
	s.decisions = d
	s.store.noteNeeds(d.needs())
}

// bootText tells this boot of the host from others; empty: it is not known.
func bootText() string {
	text, _ := os.ReadFile(bootID)
	return strings.TrimSpace(string(text))
}

// needs returns the versions that must not be dropped.
func (d *decisions) needs() map[keptVersion]bool {
	needed := map[keptVersion]bool{}
	for name, p := range d.pins {
		needed[keptVersion{name, sumText(p.use)}] = true
	}
	if d.trial != nil {
		for name, v := range d.trial.before {
			needed[keptVersion{name, sumText(v.id)}] = true
		}
	}
	return needed
}

// keepDecisions has them written, if they are other than before. The caller holds s.mu.
func (s *Source) keepDecisions() {
	d := &s.decisions
	if s.store == nil || d.text == nil && len(d.pins) == 0 && d.trial == nil {
		return
	}
	if text := s.decisions.encode(); !bytes.Equal(text, s.decisions.text) {
		s.decisions.text = text
		s.store.putDecisions(text, s.decisions.needs())
	}
}

func sortedNames[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
