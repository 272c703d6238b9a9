package http

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"svcproxy.dev/svcproxy/source/disk"
)

// marksName is the file of the state directory that keeps the versions of signed URLs.
const marksName = "http-versions.json"

// maxMarks is the maximum size of that file, in bytes.
const maxMarks = 1 << 20

// A mark identifies the content of a URL that was last used. An answer with a lower version, or with the same version and
// different content, is a replay.
type mark struct {
	Index   bool   `json:"index"`
	Version uint64 `json:"version"` // version of an index, or Unix time of the signature of a service file
	SHA256  string `json:"sha256"`
	Key     string `json:"key"` // public key of the signature; empty: not signed
}

func newMark(isIndex bool, version uint64, data []byte, key string) mark {
	sum := sha256.Sum256(data)
	return mark{isIndex, version, hex.EncodeToString(sum[:]), key}
}

// follows returns an error if next must not replace m.
func (m mark) follows(next mark) error {
	switch {
	case m == mark{} || m.Key != next.Key: // the operator has changed the key
		return nil
	case m.Index != next.Index:
		return fmt.Errorf("it was %s and is %s; use another URL if this is intended", m.kind(), next.kind())
	case next.Version < m.Version:
		return fmt.Errorf("it has version %d, and version %d was in use", next.Version, m.Version)
	case next.Version == m.Version && next.Version != 0 && next.SHA256 != m.SHA256:
		return fmt.Errorf("it still has version %d, with different content; its version must rise", m.Version)
	}
	return nil
}

func (m mark) kind() string {
	if m.Index {
		return "an index"
	}
	return "a service file"
}

// loadMarks reads the marks that saveMarks wrote, by URL. Without a file it returns none.
func loadMarks(dir string) (map[string]mark, error) {
	marks := map[string]mark{}
	data, _, err := disk.ReadContent(filepath.Join(dir, marksName), maxMarks)
	if errors.Is(err, fs.ErrNotExist) {
		return marks, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &marks)
	}
	if err != nil {
		return map[string]mark{}, fmt.Errorf("reading %s: %w", filepath.Join(dir, marksName), err)
	}
	return marks, nil
}

// saveMarks writes marks, by URL. The write is atomic: after a power failure the file has either the old or the new marks.
func saveMarks(dir string, marks map[string]mark) error {
	data, err := json.Marshal(marks)
	if err != nil {
		return fmt.Errorf("encoding versions: %w", err)
	}
	path := filepath.Join(dir, marksName)
	if err := disk.Replace(path, path+".new", true, disk.Bytes(data)); err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return nil
}
