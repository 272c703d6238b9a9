package keep

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/read"
)

// A Revision is one version of a service file as it was accepted, or its removal.
type Revision struct {
	Number   int       `json:"number"` // counts over all files of a state directory, from 1
	File     string    `json:"file"`   // its name, without the directory
	Sum      string    `json:"sum"`    // SHA-256 of the text, in hex; empty: the file was removed
	At       time.Time `json:"at"`     // when it was accepted
	UID      int       `json:"uid"`    // who owned the file; -1: not known
	Owner    string    `json:"owner,omitempty"`
	Services int       `json:"services"`
	Size     int       `json:"size"` // of the text, in bytes
	Diff

	InUse bool `json:"in_use,omitempty"` // not on the disk: Histories sets it
}

// encode returns r as a line of the index, in JSON.
func (r Revision) encode() string {
	r.InUse = false
	text, err := json.Marshal(r)
	if err != nil {
		panic(err) // numbers and strings only
	}
	return indexLine(string(text))
}

// parseRevision reads a line of the index. It returns false when that is not as encode wrote it.
func parseRevision(line string) (r Revision, ok bool) {
	text, ok := restOf(line)
	if !ok || json.Unmarshal([]byte(text), &r) != nil || !read.IsKeptName(r.File) {
		return r, false
	}
	return r, r.Number > 0 && (r.version().exists() || r.Sum == "")
}

// OfEndpoints reports whether the file lists endpoints, and has no services.
func (r Revision) OfEndpoints() bool { return read.IsEndpointsFile(r.File) }

func (r Revision) version() Version {
	sum, _ := read.ParseID(r.Sum)
	return Version{r.File, sum}
}

// parseRevisions reads an index: its revisions by number, and whether it was whole.
func parseRevisions(data []byte) (list []Revision, whole bool) {
	whole = true
	for line := range strings.Lines(string(data)) {
		r, ok := parseRevision(line)
		whole = whole && ok
		if ok {
			list = append(list, r)
		}
	}
	slices.SortStableFunc(list, func(a, b Revision) int { return cmp.Compare(a.Number, b.Number) })
	return list, whole
}

// Histories returns what stateDir keeps of the versions of service files, the newest
// first: of those with this name or, where it is empty, of all. It writes nothing.
func Histories(stateDir, name string) ([]Revision, error) {
	data, err := os.ReadFile(historyDir(stateDir).file("index"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("reading the history of service files: %w", err)
	}
	if err != nil { // a directory that may not be looked into is no history either
		if _, err := os.ReadDir(stateDir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("reading the history of service files: %w", err)
		}
	}
	list, _ := parseRevisions(data)
	slices.Reverse(list)
	markInUse(list, stateDir)
	return slices.DeleteFunc(list, func(r Revision) bool {
		return name != "" && r.File != name || r.dropped(stateDir)
	}), nil
}

// dropped reports whether the text of r is not kept any more: then its line is about to go, too.
func (r Revision) dropped(stateDir string) bool {
	v := r.version()
	_, err := os.Lstat(historyDir(stateDir).path(v))
	return v.exists() && err != nil
}

// markInUse marks the newest revision of each file that is the last accepted one.
func markInUse(list []Revision, stateDir string) {
	index, err := os.ReadFile(lastGoodDir(stateDir).file("index"))
	if err != nil {
		return // nothing is known to be in use
	}
	inUse, _, _ := parseIndex(index)
	done := map[string]bool{}
	for i := range list {
		r := &list[i]
		v := r.version()
		rec, known := inUse[r.File]
		if v.exists() && known && rec.Sum == v.Sum && !done[r.File] {
			r.InUse, done[r.File] = true, true
		}
	}
}

// revisionNumbered returns the one with this number, of this file if name is not empty.
func revisionNumbered(stateDir, name string, number int) (Revision, error) {
	list, err := Histories(stateDir, "")
	if err != nil {
		return Revision{}, err
	}
	i := slices.IndexFunc(list, func(r Revision) bool { return r.Number == number })
	switch {
	case i < 0:
		return Revision{}, fmt.Errorf("there is no version %d; see svcproxy history", number)
	case name != "" && list[i].File != name:
		return Revision{}, fmt.Errorf("version %d is one of %s, not of %s", number, source.Quote(list[i].File), source.Quote(name))
	case list[i].Sum == "":
		return Revision{}, fmt.Errorf("version %d is the removal of %s; name the version before it", number, source.Quote(list[i].File))
	}
	return list[i], nil
}
