package keep

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"sync"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/read"
)

// A records is what a state directory has of the last accepted versions of files.
type records struct {
	dir copies
	log *slog.Logger

	mu      sync.Mutex        // guards what follows, a queue, and Version.Data; never held while the disk is waited for
	known   map[string]Record // by file name
	damaged map[string]bool   // files whose copy is, by name

	// Of Load, then of the goroutine of Run.
	index        journal
	indexDamaged bool                // the index was damaged or lost: copies count that it does not name
	found        map[string][]string // the copies that Load found, the newest first, by copyStem
	unclean      bool                // the host stopped without shutting down, see markerPath
}

func newRecords(stateDir string, log *slog.Logger) *records {
	dir := lastGoodDir(stateDir)
	return &records{dir: dir, log: log, known: map[string]Record{}, damaged: map[string]bool{}, index: journal{path: dir.file("index")}}
}

func (r *records) recordOf(name string) (Record, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rec, ok := r.known[name]
	return rec, ok
}

func (r *records) record(name string, rec Record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.known[name] = rec
}

func (r *records) stateDir() string { return filepath.Dir(r.Dir()) }

// Dir returns the directory of the copies.
func (r *records) Dir() string { return string(r.dir) }

// UncleanStop reports whether the host stopped without shutting down while the store was used.
func (r *records) UncleanStop() bool { return r.unclean }

// Names returns the names of all files that have a record.
func (r *records) Names() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Keys(r.known))
}

// CopyPath returns the path of the copy of a version.
func (r *records) CopyPath(name string, sum [sha256.Size]byte) string {
	return r.dir.path(Version{name, sum})
}

// Read returns the recorded version of a file.
func (r *records) Read(name string, rec Record) ([]byte, error) {
	data, err := r.dir.read(Version{name, rec.Sum})
	if err != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.damaged[name] = true
	}
	return data, err
}

// TextOf returns what an accepted version says; nil: nobody knows any more.
func (r *records) TextOf(name string, v *read.Version) []byte {
	r.mu.Lock()
	data := v.Data
	r.mu.Unlock()
	if data != nil {
		return data
	}
	data, err := r.dir.read(Version{name, v.ID})
	if err != nil {
		return nil
	}
	return data
}

// Revision returns the version with this number, of this file if name is not empty, and its text.
func (r *records) Revision(name string, number int) (Revision, []byte, error) {
	rev, err := revisionNumbered(r.stateDir(), name, number)
	if err != nil {
		return rev, nil, err
	}
	text, err := r.Text(rev.File, rev.version().Sum)
	return rev, text, err
}

// Text returns a version that was accepted once, from its copy.
func (r *records) Text(name string, sum [sha256.Size]byte) ([]byte, error) {
	var why error
	for _, dir := range []copies{historyDir(r.stateDir()), r.dir} {
		data, err := dir.read(Version{name, sum})
		if err == nil {
			return bytes.Clone(data), nil
		}
		why = cmp.Or(why, err)
	}
	return nil, fmt.Errorf("reading the copy of a version of %s: %w", source.Quote(name), why)
}
