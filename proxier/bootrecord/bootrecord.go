// Package bootrecord keeps in a file what this process has made in the kernel and the kernel does not say: which virtual
// servers are ours, and to which frontends connections may be tracked. A change is recorded before the kernel holds it, so
// that a process that is killed leaves nothing that the next one does not know of.
//
// Its types are File, which has lines of text, and Scope, for which they are valid: one boot and one network namespace,
// which is how long the kernel keeps what they are about.
package bootrecord

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"svcproxy.dev/svcproxy/source/disk"
)

// A File is the file of a record. Changes are appended, those of a sync in one write; it is rewritten when most of its
// lines are outdated.
//
//	svcproxy ipvs, boot 7d1c..., network namespace 4026531840
//	own tcp 10.96.0.10:80
//	gone tcp 10.96.0.10:80
//
// It is never synced to disk: what is left of it when the kernel stops is invalid, like
// a file of another boot. A process that is killed may leave an incomplete line; what
// that announced was not done. The zero File writes nothing.
type File struct {
	path    string // empty: no file
	head    string // the first line of a valid file
	pending []byte // lines to be written

	size       int64 // of the file as we wrote it; unknown: rewrite it
	count      int   // of its lines
	otherScope bool  // the file is of another boot or namespace
	stale      bool  // the last write failed: the file is out of date
}

const (
	unknown   = -1
	newSuffix = ".new" // of the file that takes the place of another
)

// maxPending is how many bytes are kept to write the next lines.
const maxPending = 64 << 10

// maxOutdated is how many outdated lines, some 60 bytes each, never cause a rewrite.
const maxOutdated = 1000

// Read reads the file at path, and calls replay with each line if it is of this scope; kind is the first words of its first
// line. It ignores an incomplete last line, and counts lines of which replay returns an error. It writes nothing.
func Read(path, kind string, s Scope, replay func(line string) error) (f File, damaged int, err error) {
	f = File{path: path, head: kind + ", " + string(s), size: unknown}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return f, 0, nil
	}
	if err != nil {
		return f, 0, err
	}
	whole := bytes.LastIndexByte(data, '\n') + 1
	head, rest, _ := strings.Cut(string(data[:whole]), "\n")
	if f.otherScope = head != f.head; f.otherScope {
		return f, 0, nil
	}
	for line := range strings.Lines(rest) {
		f.count++
		if replay(line) != nil {
			damaged++
		}
	}
	if whole == len(data) && damaged == 0 {
		f.size = int64(whole)
	}
	return f, damaged, nil
}

// Path returns where the file is; empty: there is none.
func (f *File) Path() string { return f.path }

// Note adds words as a line to what Write will write.
func (f *File) Note(words ...any) {
	if f.path != "" {
		f.pending = AppendLine(f.pending, words...)
		f.count++
	}
}

// AppendLine appends words as a line.
func AppendLine(b []byte, words ...any) []byte { return fmt.Appendln(b, words...) }

// Write updates the file: with what was noted, or from scratch with all lines, of which there are live. Without any the
// file is removed.
func (f *File) Write(live int, all func() []byte) error {
	if len(f.pending) == 0 && !f.stale {
		return nil
	}
	var err error
	switch {
	case live == 0:
		err = f.remove()
	case f.size == unknown || f.count > 2*live+maxOutdated:
		err = f.replace(live, all())
	default:
		if err = f.appendPending(); errors.Is(err, errChanged) {
			err = f.replace(live, all())
		}
	}
	if f.pending = f.pending[:0]; cap(f.pending) > maxPending {
		f.pending = nil
	}
	if f.stale = err != nil; f.stale {
		f.size = unknown
	}
	return err
}

// Clear forgets what was noted, and removes the file, unless it may be valid in another namespace.
func (f *File) Clear() error {
	f.pending, f.stale = nil, false
	if f.path == "" {
		return nil
	}
	return f.remove()
}

var errChanged = errors.New("another process changed the file")

func (f *File) appendPending() error {
	file, err := os.OpenFile(f.path, os.O_WRONLY|os.O_APPEND, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return errChanged
	}
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if info.Size() != f.size {
		return errChanged
	}
	n, err := file.Write(f.pending)
	f.size += int64(n)
	return err
}

// replace replaces the file atomically.
func (f *File) replace(live int, all []byte) error {
	if err := os.MkdirAll(filepath.Dir(f.path), 0o755); err != nil {
		return err
	}
	data := append([]byte(f.head+"\n"), all...)
	if err := disk.Replace(f.path, f.path+newSuffix, false, disk.Bytes(data)); err != nil {
		return err
	}
	f.size, f.count, f.otherScope = int64(len(data)), live, false
	return nil
}

// remove removes the file, unless it may be valid in another namespace.
func (f *File) remove() error {
	if f.otherScope {
		return nil
	}
	f.size, f.count = unknown, 0
	for _, path := range []string{f.path + newSuffix, f.path} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
