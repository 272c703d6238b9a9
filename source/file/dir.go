package file

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"

	"golang.org/x/sync/errgroup"

	"svcproxy/source"
)

// SettingsName is the file of settings, which is never a service file.
const SettingsName = "svcproxy.toml"

// A File is one service file as it was read.
type File struct {
	Path       string
	Services   []*source.Service // none when a fault is more than a warning
	Faults     []source.Fault    // warnings too
	Unreadable bool              // nobody knows what it says; a fault says why
}

// A parser reads a service file's text, as Parse does, but for the services that
// are known from before. It returns those that are known by now. When ctx ends
// nobody wants to know any more, and what it returns is at fault.
type parser func(ctx context.Context, path string, data []byte, before known) ([]*source.Service, []source.Fault, known)

// ReadDir reads all service files of a directory, in name order. The error is
// about the directory; what is wrong with a file is among its faults.
func (rules Rules) ReadDir(dir string) ([]File, error) {
	return readDir(dir, rules.maxSize(), rules.parseNew)
}

func readDir(dir string, max int, parse parser) ([]File, error) {
	names, err := list(dir)
	if err != nil {
		return nil, err
	}
	read := make([]*File, len(names))
	inParallel(len(names), func(i int) {
		path := filepath.Join(dir, names[i])
		if info, err := os.Stat(path); err == nil && info.IsDir() {
			return // a link to a directory
		}
		f := readFile(path, max, parse)
		read[i] = &f
	})
	files := make([]File, 0, len(names))
	for _, f := range read {
		if f != nil {
			files = append(files, *f)
		}
	}
	return files, nil
}

// ReadFile reads one file as a service file, whatever its name.
func (rules Rules) ReadFile(path string) File {
	return readFile(path, rules.maxSize(), rules.parseNew)
}

func readFile(path string, max int, parse parser) File {
	data, _, err := readContent(path, max)
	v := newVersion(context.Background(), path, data, err, parse, nil)
	var large errTooLarge
	return File{Path: path, Services: v.services, Faults: v.faults, Unreadable: err != nil && !errors.As(err, &large)}
}

// ReadText reads a text as a service file that has this name in messages. It is
// JSON when it begins as an object does, else TOML. The text is returned too.
func (rules Rules) ReadText(name string, r io.Reader) (File, []byte) {
	data, err := io.ReadAll(io.LimitReader(r, int64(rules.maxSize())+1))
	if err != nil {
		return File{Path: name, Faults: []source.Fault{unreadable(name, err)}, Unreadable: true}, nil
	}
	start := bytes.TrimLeft(bytes.TrimPrefix(data, []byte("\ufeff")), " \t\r\n")
	services, faults, _ := rules.parse(context.Background(), name, data, bytes.HasPrefix(start, []byte("{")), nil)
	return File{Path: name, Services: services, Faults: faults}, data
}

// list returns the names of the service files in dir, sorted.
func list(dir string) ([]string, error) {
	names, _, err := listID(dir)
	return names, err
}

// listID also says which directory that is.
func listID(dir string) (names []string, id homeID, err error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, id, fmt.Errorf("listing service files: %w", err)
	}
	defer d.Close()
	if id, err = homeIDOf(int(d.Fd()), ""); err != nil {
		return nil, id, fmt.Errorf("listing service files: %w", err)
	}
	entries, err := d.ReadDir(-1)
	if err != nil {
		return nil, id, fmt.Errorf("listing service files: %w", err)
	}
	for _, e := range entries {
		if isServiceFile(e.Name()) && !e.IsDir() {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	return names, id, nil
}

// isServiceFile tells by its name whether a file can hold services. What
// editors and package managers leave behind (web.toml~, .web.toml.swp,
// web.toml.dpkg-old) begins with a dot or does not end in .toml or .json.
func isServiceFile(name string) bool {
	ext := filepath.Ext(name)
	return (ext == ".toml" || ext == ".json") && !strings.HasPrefix(name, ".") && name != SettingsName
}

// inParallel calls f with 0 to n-1 on all cores.
func inParallel(n int, f func(i int)) {
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	for i := range n {
		g.Go(func() error { f(i); return nil })
	}
	_ = g.Wait()
}

// A stamp tells two versions of a file apart without reading it. The zero
// stamp is of no file.
type stamp struct {
	fileID
	size         int64
	mtime, ctime syscall.Timespec
}

func stampOf(info fs.FileInfo) stamp {
	st := info.Sys().(*syscall.Stat_t)
	return stamp{fileID{uint64(st.Dev), st.Ino}, st.Size, st.Mtim, st.Ctim}
}

// A version is what was found in the place of a file at one time.
type version struct {
	// id tells versions apart: the hash of the contents, or of the reason why
	// there are none. The zero id: there is no file.
	id       [sha256.Size]byte
	services []*source.Service
	known    known // of those
	faults   []source.Fault
	judged   atomic.Int64 // by which rules, see Source.Judge
	broken   bool         // a fault is more than a warning
	size     int          // of the contents, in bytes
	data     []byte       // the contents, until they are known to be kept
}

// gone is the version of a file that does not exist.
var gone = &version{}

func newVersion(ctx context.Context, path string, data []byte, err error, parse parser, before known) *version {
	v := &version{id: idOf(data, err), size: len(data)}
	if err != nil {
		v.faults = []source.Fault{unreadable(path, err)}
	} else {
		v.services, v.faults, v.known = parse(ctx, path, data, before)
	}
	for _, f := range v.faults {
		v.broken = v.broken || !f.Warning
	}
	if v.broken {
		v.services = nil
	} else {
		v.data = data
	}
	return v
}

func idOf(data []byte, err error) [sha256.Size]byte {
	if err != nil {
		return sha256.Sum256([]byte("\x00unreadable: " + err.Error()))
	}
	return sha256.Sum256(data)
}

func unreadable(path string, err error) source.Fault {
	var large errTooLarge
	if errors.As(err, &large) {
		return tooLarge(path, int(large))
	}
	if errors.Is(err, errAway) {
		return source.Fault{Pos: source.Position{File: path}, Msg: err.Error()}
	}
	if errors.Is(err, errLost) {
		return source.Fault{Pos: source.Position{File: path}, Msg: err.Error(), Hint: "put it back, or reload svcproxy to remove its services"}
	}
	return Unreadable(path, err)
}

// Unreadable is the fault of a file or directory that cannot be read. Root without
// the right to pass over modes, as the unit has it, may need to be told why.
func Unreadable(path string, err error) source.Fault {
	f := source.Fault{Pos: source.Position{File: path}, Msg: "cannot be read: " + reason(err)}
	if errors.Is(err, fs.ErrPermission) && os.Geteuid() == 0 {
		f.Hint = "svcproxy.service reads what the modes of files and directories let root read: chown root, or chmod a+r"
	}
	return f
}

// reason returns why something failed, without the path.
func reason(err error) string {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		err = pe.Err
	}
	return err.Error()
}

var errNotRegular = errors.New("it is not a regular file")

var errAway = errors.New("the directory is not as it was, and the file cannot be read")

var errLost = errors.New("the file was not there after the host had stopped without shutting down")

// An errTooLarge is the size that a file passed.
type errTooLarge int

func (e errTooLarge) Error() string { return fmt.Sprintf("it has more than %d bytes", int(e)) }

// readContent reads a file of at most max bytes, and says which version of it was
// read: one that is written meanwhile has another stamp afterwards.
func readContent(path string, max int) ([]byte, stamp, error) {
	f, info, err := Open(path)
	if info == nil {
		return nil, stamp{}, err
	}
	if err != nil {
		return nil, stampOf(info), err
	}
	defer f.Close()
	data, err := readBounded(f, info, max)
	return data, stampOf(info), err
}

// Open opens a file to read it, if it is a regular one: nobody knows for how long
// a pipe would be waited for. After an error there may be info of what is there.
func Open(path string) (*os.File, fs.FileInfo, error) {
	// Looked at before it is opened, for opening a device can do things; opened
	// without blocking, for it may have become a pipe since.
	info, err := os.Stat(path)
	if err != nil {
		return nil, nil, err
	}
	irregular := &fs.PathError{Op: "open", Path: path, Err: errNotRegular}
	if !info.Mode().IsRegular() {
		return nil, info, irregular
	}
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, info, err
	}
	if info, err = f.Stat(); err == nil && !info.Mode().IsRegular() {
		err = irregular
	}
	if err != nil {
		_ = f.Close()
		return nil, info, err
	}
	return f, info, nil
}

func readBounded(f *os.File, info fs.FileInfo, max int) ([]byte, error) {
	if info.Size() > int64(max) {
		return nil, errTooLarge(max)
	}
	var b bytes.Buffer
	b.Grow(int(info.Size()) + bytes.MinRead) // one read, and one to see the end
	if _, err := b.ReadFrom(io.LimitReader(f, int64(max)+1)); err != nil {
		return nil, err
	}
	if b.Len() > max {
		return nil, errTooLarge(max)
	}
	return b.Bytes(), nil
}
