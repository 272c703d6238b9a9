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

// maxMarks is the size of the largest such file, in bytes.
const maxMarks = 1 << 20

// A mark is what was last used of a URL. An answer of a lower version is a replay, and so is another one of the same
// version.
type mark struct {
	Index   bool   `json:"index"`
	Version uint64 `json:"version"` // of an index, or when a service file was signed
	SHA256  string `json:"sha256"`
	Key     string `json:"key"` // that signed it; empty: none did
}

func newMark(isIndex bool, version uint64, data []byte, key string) mark {
	sum := sha256.Sum256(data)
	return mark{isIndex, version, hex.EncodeToString(sum[:]), key}
}

// follows returns why next cannot follow m; nil: it can.
func (m mark) follows(next mark) error {
	switch {
	case m == mark{} || m.Key != next.Key: // the operator has changed the key
		return nil
	case m.Index != next.Index:
		return fmt.Errorf("it was %s and is %s; give it another URL if that is meant", m.kind(), next.kind())
	case next.Version < m.Version:
		return fmt.Errorf("it has version %d, and version %d was in use", next.Version, m.Version)
	case next.Version == m.Version && next.Version != 0 && next.SHA256 != m.SHA256:
		return fmt.Errorf("it has version %d as before, and another content; its version must rise", m.Version)
	}
	return nil
}

func (m mark) kind() string {
	if m.Index {
		return "an index"
	}
	return "a service file"
}

// loadMarks returns what saveMarks wrote.
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

// saveMarks writes marks, by URL. A power failure leaves what was there before, or this.
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
