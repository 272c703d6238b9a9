package disk

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"svcproxy.dev/svcproxy/internal/trust"
)

// A Text is a text as it was read from a file.
type Text struct {
	Data    []byte
	Stamp   Stamp
	Target  string // of a link
	Err     error
	Opened  time.Time
	Hidden  bool // it may not be quoted: a link to the file belongs to another user than the file
	Strange bool // a link to the file belongs to a user who is neither root nor its owner
}

// ReadText reads a regular file of at most limit bytes. link: path is a symbolic link.
func ReadText(path string, link bool, limit int) Text {
	return readText(path, link, limit, nil)
}

// readText calls came, unless that is nil, with the size of each part that it has read, and stops with the error of came.
func readText(path string, link bool, limit int, came func(n int) error) (t Text) {
	if link {
		t.Target, _ = filepath.EvalSymlinks(path)
	}
	t.Opened = time.Now()
	t.Data, t.Stamp, t.Err = readContent(path, limit, came)
	if t.Err == nil {
		links := trust.LinksTo(path, t.Stamp.Uid)
		t.Hidden, t.Strange = links != trust.OwnLinks, links == trust.ForeignLinks
	}
	return t
}

// ReadContent reads a file of at most limit bytes, and says which version of it was
// read: one that is written meanwhile has another stamp afterwards.
func ReadContent(path string, limit int) ([]byte, Stamp, error) {
	return readContent(path, limit, nil)
}

func readContent(path string, limit int, came func(n int) error) ([]byte, Stamp, error) {
	f, info, err := Open(path)
	if info == nil {
		return nil, Stamp{}, err
	}
	if err != nil {
		return nil, StampOf(info), err
	}
	defer f.Close()
	var r io.Reader = f
	if came != nil {
		r = parts{f, came}
	}
	data, err := readBounded(r, info, limit)
	return data, StampOf(info), err
}

// Open opens a file to read it, if it is a regular one: a pipe may never have anything
// to read. After an error there may be info of what is there.
func Open(path string) (*os.File, fs.FileInfo, error) {
	// Looked at before it is opened, for opening a device can do things; opened
	// without blocking, for it may have become a pipe since.
	info, err := os.Stat(path)
	if err != nil {
		return nil, nil, err
	}
	if err := checkRegular(path, info); err != nil {
		return nil, info, err
	}
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, info, err
	}
	if info, err = f.Stat(); err == nil {
		err = checkRegular(path, info)
	}
	if err != nil {
		_ = f.Close()
		return nil, info, err
	}
	return f, info, nil
}

// checkRegular returns why a file is not one to read; nil: it is.
func checkRegular(path string, info fs.FileInfo) error {
	switch {
	case info.Mode().IsRegular():
		return nil
	case info.IsDir():
		return &fs.PathError{Op: "open", Path: path, Err: ErrDirectory}
	}
	return &fs.PathError{Op: "open", Path: path, Err: ErrNotRegular}
}

func readBounded(r io.Reader, info fs.FileInfo, limit int) ([]byte, error) {
	if info.Size() > int64(limit) {
		return nil, TooLargeError(limit)
	}
	var b bytes.Buffer
	b.Grow(int(info.Size()) + bytes.MinRead) // all of it, and room to see the end
	if _, err := b.ReadFrom(io.LimitReader(r, int64(limit)+1)); err != nil {
		return nil, err
	}
	if b.Len() > limit {
		return nil, TooLargeError(limit)
	}
	return b.Bytes(), nil
}

// parts reads a file in parts of partSize, and calls came with the size of each.
type parts struct {
	io.Reader
	came func(n int) error
}

// partSize is how much of a file is read at a time, in bytes: a disk of 32 KiB/s tells within Patience that it works.
const partSize = 64 << 10

// Read implements io.Reader.
func (r parts) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p[:min(len(p), partSize)])
	return n, cmp.Or(err, r.came(n))
}

// ErrNotRegular says that something is no file to read.
var ErrNotRegular = errors.New("it is not a regular file")

// ErrDirectory says that a directory has the name of a file. Docker and Podman make one where the source of
// a bind mount is missing.
var ErrDirectory = errors.New("it is a directory")

// An TooLargeError is the size that a file passed.
type TooLargeError int

// Error implements error.
func (e TooLargeError) Error() string { return fmt.Sprintf("it has more than %d bytes", int(e)) }
