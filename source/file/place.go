package file

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/internal/wake"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/disk"
	"svcproxy.dev/svcproxy/source/keep"
	"svcproxy.dev/svcproxy/source/read"
	"svcproxy.dev/svcproxy/source/remote"
)

// A serviceDir is the directory of files that services were last read from. Where that
// is gone, or another one without any file has taken its path, as below a disk that
// is not mounted, nobody has removed the files: what they said stays.
type serviceDir struct {
	dir       string
	statePath string     // where its id is kept over a restart; empty: nowhere
	lastID    disk.DirID // zero: not known
}

// errEmptyReplacement says that there is nothing to conclude from a directory without files.
var errEmptyReplacement = errors.New("it is another directory than before, and has no service files: its disk may not be mounted; a file with services = [] there says that there are none")

// newServiceDir returns the directory at dir that is kept in stateDir, which may be empty.
func newServiceDir(dir, stateDir string) *serviceDir {
	d := &serviceDir{dir: dir}
	if stateDir != "" {
		d.statePath = keep.DirectoryPath(stateDir)
	}
	return d
}

// loadID takes up what an earlier run kept.
func (d *serviceDir) loadID() {
	if data, err := os.ReadFile(d.statePath); err == nil {
		if n, _ := fmt.Sscan(string(data), &d.lastID.Dev, &d.lastID.Ino, &d.lastID.Born); n < 2 { // the first versions kept two
			d.lastID = disk.DirID{}
		}
	}
}

// take notes which directory was listed, and reports whether it is another one than before. After an error
// nobody knows which files there are. known: files were read before.
func (d *serviceDir) take(l read.Listing, known bool) (moved bool, err error) {
	if l.Err != nil {
		return false, l.Err
	}
	if len(l.Names) == 0 && known && !l.ID.Is(d.lastID) {
		return false, errEmptyReplacement
	}
	moved = l.ID != d.lastID
	d.lastID = l.ID
	return moved, nil
}

// encodeID returns what statePath holds.
func (d *serviceDir) encodeID() []byte {
	return fmt.Appendf(nil, "%d %d %d\n", d.lastID.Dev, d.lastID.Ino, d.lastID.Born)
}

// unchanged reports whether the directory is still the one that was listed.
func (d serviceDir) unchanged() bool {
	id, err := disk.DirIDOf(unix.AT_FDCWD, d.dir)
	return err == nil && id == d.lastID
}

// CheckListing returns why nothing can be concluded from what is not in a directory of
// service files, of which stateDir keeps the last good versions; nil: what is not
// there does not exist.
func CheckListing(dir, stateDir string) error {
	d := newServiceDir(dir, stateDir)
	d.loadID()
	l, err := disk.Answer(dir, func() (read.Listing, error) { return read.ListDir(dir), nil })
	if err == nil {
		_, err = d.take(l, d.lastID != disk.DirID{})
	}
	if errors.Is(err, fs.ErrNotExist) && (d.lastID == disk.DirID{}) {
		return nil // there never was one
	}
	return err
}

// A place is where texts are: a directory, or a server.
type place interface {
	path(name string) string // as faults, status and units have it
	name(path string) string
	origin(name string) read.Origin
	isLink(name string) bool
	contents(name string) (text []byte, ok bool) // not ok: it cannot be read
}

// A directory is a place. It knows of the owner of a text only when that is read.
type directory struct {
	dir     string
	disks   *disk.Asker
	maxSize int
}

func (d directory) path(name string) string { return filepath.Join(d.dir, name) }
func (directory) name(path string) string   { return filepath.Base(path) }
func (directory) origin(string) read.Origin { return read.Origin{} }
func (d directory) isLink(name string) bool { return d.disks.Lstat(d.path(name)).IsLink() }
func (d directory) contents(name string) ([]byte, bool) {
	path := d.path(name)
	t, ok := d.disks.Read(path, d.disks.Lstat(path), d.maxSize)
	return t.Data, ok && t.Err == nil
}

// A server is a place that a Fetcher follows. Texts are called there what they are called here.
type server struct {
	*remote.State
	source  string // its name
	fetcher remote.Fetcher
	beside  bool                       // other sources are served too, and do not wait for it
	begun   time.Time                  // zero: not yet
	given   chan struct{}              // holds something after next was set
	next    atomic.Pointer[remote.Set] // the newest, which was not looked at yet; nil: none
	set     atomic.Pointer[remote.Set] // that was looked at last; nil: none
	heard   heard                      // of versions
	empty   []string                   // answers that listed nothing, until nothing of them is missing
	lacks   lacking                    // which texts stay that set lacks
	admits  *remote.Set                // that the operator has confirmed
	allowed atomic.Pointer[[]string]   // see Source.SetAllowEmpty
}

// A lacking says which texts stay that a set lacks.
type lacking struct {
	set  *remote.Set
	lost []string // answers that are in doubt: what they may list stays
}

func (l lacking) any() bool { return len(l.lost) > 0 || l.set.Partial || len(l.set.Unknown) > 0 }

// keeps reports whether a text stays that the set lacks.
func (l lacking) keeps(name string) bool {
	return l.set.Leaves(name) || slices.ContainsFunc(l.lost, func(answer string) bool { return remote.Below(name, answer) })
}

// equal reports whether l keeps the same names as one of another set.
func (l lacking) equal(o lacking) bool {
	return slices.Equal(l.lost, o.lost) && l.set.Partial == o.set.Partial && slices.Equal(l.set.Unknown, o.set.Unknown)
}

func newServer(f remote.Fetcher, name, address string, log *slog.Logger) *server {
	s := &server{State: remote.NewState(name, log, 1), source: name, fetcher: f, given: make(chan struct{}, 1)}
	s.Use(address)
	return s
}

// A heard is what is known of the versions of a server, over restarts too.
type heard struct {
	version uint64 // of the last set that was used; 0: not known
	counter string // see remote.Set
	doubted bool   // an older one came: it and those after it are held until nothing is missing, whatever their version
}

const heardFormat = "%d %t %q\n"

func (h heard) encode() []byte { return fmt.Appendf(nil, heardFormat, h.version, h.doubted, h.counter) }

// older reports whether a set may be older than what was heard.
func (h heard) older(set *remote.Set) bool {
	v := numberOf(set)
	return v != 0 && h.version != 0 && (h.doubted || v < h.version || set.Counter != h.counter)
}

// why says how an older set differs.
func (h heard) why(set *remote.Set, a remote.Answer) string {
	switch {
	case set.Counter != h.counter:
		return fmt.Sprintf("its list of service files is of %s, was of %s, and lacks %d of %d", set.Counter, h.counter, a.Lacks, a.Known)
	case a.Version >= a.Newest:
		return fmt.Sprintf("its list of service files was of a version before %d, and lacks %d of %d", a.Newest, a.Lacks, a.Known)
	}
	return a.Doubt("service files")
}

// numberOf returns the version of a set, if it is a number.
func numberOf(set *remote.Set) uint64 {
	n, err := strconv.ParseUint(set.Version, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// loadHeard takes up what an earlier run heard.
func (s *server) loadHeard(path string) {
	var h heard
	if data, err := os.ReadFile(path); err == nil {
		if _, err := fmt.Sscanf(string(data), heardFormat, &h.version, &h.doubted, &h.counter); err == nil {
			s.heard = h
		}
	}
}

var errFetcherEnded = errors.New("the work of asking the server has ended; beginning again")

// follow has the server followed until ctx ends.
func (s *server) follow(ctx context.Context) {
	for ctx.Err() == nil {
		err := s.fetcher.Run(ctx, s.give, s.report)
		if ctx.Err() == nil {
			s.report(cmp.Or(err, errFetcherEnded))
		}
		select {
		case <-ctx.Done():
		case <-time.After(remote.MostWait):
		}
	}
}

// give takes a set that the fetcher found. One before it that was not looked at yet is overtaken.
func (s *server) give(set remote.Set) {
	for i, t := range set.Texts {
		if !read.IsTextName(t.Name) || i > 0 && set.Texts[i-1].Name >= t.Name {
			s.Fail(0, fmt.Errorf("reading the service files of the server: unexpected name %s", source.Excerpt(t.Name)))
			return
		}
	}
	s.next.Store(&set)
	wake.Once(s.given)
}

// report takes how an exchange with the server ended.
func (s *server) report(err error) {
	if err == nil {
		s.Watching(0)
	} else {
		s.Fail(0, err)
	}
}

// reload has the server asked now, if the fetcher can.
func (s *server) reload() {
	if r, ok := s.fetcher.(interface{ Reload() }); ok {
		r.Reload()
	}
}

func (*server) path(name string) string        { return name }
func (*server) name(path string) string        { return path }
func (*server) origin(name string) read.Origin { return read.Origin{URL: name} }
func (*server) isLink(string) bool             { return false }
func (s *server) contents(name string) ([]byte, bool) {
	t := textOf(s.set.Load(), name)
	if t == nil {
		return nil, false
	}
	return t.Data, true
}

// textOf returns the text of a set that has this name; nil: none.
func textOf(set *remote.Set, name string) *remote.Text {
	if set == nil {
		return nil
	}
	i, ok := slices.BinarySearchFunc(set.Texts, name, func(t remote.Text, name string) int { return strings.Compare(t.Name, name) })
	if !ok {
		return nil
	}
	return &set.Texts[i]
}
