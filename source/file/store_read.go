package file

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

func (st *store) recordOf(name string) (record, bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	r, ok := st.records[name]
	return r, ok
}

// names returns the names of all files that have a record.
func (st *store) names() []string {
	st.mu.Lock()
	defer st.mu.Unlock()
	return slices.Collect(maps.Keys(st.records))
}

// copyPath returns the path of the copy of a version.
func (st *store) copyPath(name string, sum [sha256.Size]byte) string {
	return filepath.Join(st.lastgood, copyName(name, sum))
}

// readCopy returns the text with this checksum that a file holds.
func readCopy(path string, sum [sha256.Size]byte) ([]byte, error) {
	data, _, err := disk.ReadContent(path, read.MaxFileSize)
	if err == nil && sha256.Sum256(data) != sum {
		err = errDamaged
	}
	return data, err
}

// read returns the recorded version of a file.
func (st *store) read(name string, r record) ([]byte, error) {
	data, err := readCopy(st.copyPath(name, r.sum), r.sum)
	if err != nil {
		st.mu.Lock()
		st.damaged[name] = true
		st.mu.Unlock()
	}
	return data, err
}

// textOf returns what an accepted version says; nil: nobody knows any more.
func (st *store) textOf(path string, v *read.Version) []byte {
	st.mu.Lock()
	data := v.Data
	st.mu.Unlock()
	if data != nil {
		return data
	}
	data, err := readCopy(st.copyPath(filepath.Base(path), v.ID), v.ID)
	if err != nil {
		return nil
	}
	return data
}

// revision returns the version with this number, of this file if name is not empty, and its text.
func (st *store) revision(name string, number int) (Revision, []byte, error) {
	r, err := revisionNumbered(st.stateDir(), name, number)
	if err != nil {
		return r, nil, err
	}
	text, err := st.text(r.File, r.version().sum)
	return r, text, err
}

// text returns a version that was accepted once, from its copy.
func (st *store) text(name string, sum [sha256.Size]byte) ([]byte, error) {
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
