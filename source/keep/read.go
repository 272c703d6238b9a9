package keep

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"fmt"
	"maps"
	"path/filepath"
	"slices"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/disk"
	"svcproxy.dev/svcproxy/source/read"
)

func (st *Store) recordOf(name string) (Record, bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	r, ok := st.records[name]
	return r, ok
}

// Names returns the names of all files that have a record.
func (st *Store) Names() []string {
	st.mu.Lock()
	defer st.mu.Unlock()
	return slices.Collect(maps.Keys(st.records))
}

// CopyPath returns the path of the copy of a version.
func (st *Store) CopyPath(name string, sum [sha256.Size]byte) string {
	return filepath.Join(st.lastgood, copyName(name, sum))
}

// readCopy returns the text with this checksum that a file holds.
func readCopy(path string, sum [sha256.Size]byte) ([]byte, error) {
	data, _, err := disk.ReadContent(path, read.MaxFileSize)
	if err == nil && sha256.Sum256(data) != sum {
		err = ErrDamaged
	}
	return data, err
}

// Read returns the recorded version of a file.
func (st *Store) Read(name string, r Record) ([]byte, error) {
	data, err := readCopy(st.CopyPath(name, r.Sum), r.Sum)
	if err != nil {
		st.mu.Lock()
		st.damaged[name] = true
		st.mu.Unlock()
	}
	return data, err
}

// TextOf returns what an accepted version says; nil: nobody knows any more.
func (st *Store) TextOf(path string, v *read.Version) []byte {
	st.mu.Lock()
	data := v.Data
	st.mu.Unlock()
	if data != nil {
		return data
	}
	data, err := readCopy(st.CopyPath(filepath.Base(path), v.ID), v.ID)
	if err != nil {
		return nil
	}
	return data
}

// Revision returns the version with this number, of this file if name is not empty, and its text.
func (st *Store) Revision(name string, number int) (Revision, []byte, error) {
	r, err := revisionNumbered(st.stateDir(), name, number)
	if err != nil {
		return r, nil, err
	}
	text, err := st.Text(r.File, r.version().Sum)
	return r, text, err
}

// Text returns a version that was accepted once, from its copy.
func (st *Store) Text(name string, sum [sha256.Size]byte) ([]byte, error) {
	var why error
	for _, dir := range []string{st.history.dir, st.lastgood} {
		data, err := readCopy(filepath.Join(dir, copyName(name, sum)), sum)
		if err == nil {
			return bytes.Clone(data), nil
		}
		why = cmp.Or(why, err)
	}
	return nil, fmt.Errorf("reading the copy of a version of %s: %w", source.Quote(name), why)
}
