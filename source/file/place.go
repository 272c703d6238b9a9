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

// A serviceDir is the directory that service files were last read from. If it has
// disappeared, or an empty directory is at its path, for example because a disk is not
// mounted, the files were not removed on purpose, and their services stay.
type serviceDir struct {
	dir       string
	statePath string     // where its id is saved for a restart; empty: nowhere
	lastID    disk.DirID // zero: unknown
}

// errEmptyReplacement says why the files of an empty directory do not count as removed.
var errEmptyReplacement = errors.New("it is another directory than before, and has no service files: its disk may not be mounted; a file with services = [] there says that there are none")

// newServiceDir returns the directory at dir, whose id is saved in stateDir. stateDir may be empty.
func newServiceDir(dir, stateDir string) *serviceDir {
	d := &serviceDir{dir: dir}
	if stateDir != "" {
		d.statePath = keep.DirectoryPath(stateDir)
	}
	return d
}

// loadID loads the id that an earlier run saved.
func (d *serviceDir) loadID() {
	if data, err := os.ReadFile(d.statePath); err == nil {
		if n, _ := fmt.Sscan(string(data), &d.lastID.Dev, &d.lastID.Ino, &d.lastID.Born); n < 2 { // the first versions kept two
			d.lastID = disk.DirID{}
		}
	}
}

// take records which directory was listed, and reports whether it differs from the last one. An error means that the listing
// must not be used. known says whether files were read before.
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

// encodeID returns the content of the file at statePath.
func (d *serviceDir) encodeID() []byte {
	return fmt.Appendf(nil, "%d %d %d\n", d.lastID.Dev, d.lastID.Ino, d.lastID.Born)
}

// unchanged reports whether the directory is still the one that was listed.
func (d serviceDir) unchanged() bool {
	id, err := disk.DirIDOf(unix.AT_FDCWD, d.dir)
	return err == nil && id == d.lastID
}

// CheckListing returns an error if files that are missing from a directory of service
// files may still exist, for example because its disk is not mounted. stateDir has their
// last good versions.
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

// A place is where texts are read from: a directory or a server.
type place interface {
	path(name string) string // as in faults, status and units
	name(path string) string
	origin(name string) read.Origin
	isLink(name string) bool
	contents(name string) (text []byte, ok bool) // ok is false if it cannot be read
}

// A directory is a place. The owner of a text becomes known only when the text is read.
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

// A server is a place that a Fetcher follows. Its paths are equal to the names of texts.
type server struct {
	*remote.State
	source  string // name of the source
	fetcher remote.Fetcher
	beside  bool                       // other sources are used too, and do not wait for this one
	begun   time.Time                  // when it was started; zero: not yet
	given   chan struct{}              // has an element after next was set
	next    atomic.Pointer[remote.Set] // the newest set, not processed yet; nil: none
	set     atomic.Pointer[remote.Set] // the set that was processed last; nil: none
	heard   heard                      // the version in use
	empty   []string                   // answers that listed nothing and whose texts are still missing
	lacks   lacking                    // which texts stay in use although set lacks them
	admits  *remote.Set                // the set that the operator has confirmed
	allowed atomic.Pointer[[]string]   // see Source.SetAllowEmpty
}

// A lacking says which texts stay in use although a set lacks them.
type lacking struct {
	set  *remote.Set
	lost []string // answers in doubt; texts that they can list stay
}

func (l lacking) any() bool { return len(l.lost) > 0 || l.set.Partial || len(l.set.Unknown) > 0 }

// keeps reports whether a text stays in use although the set lacks it.
func (l lacking) keeps(name string) bool {
	return l.set.Leaves(name) || slices.ContainsFunc(l.lost, func(answer string) bool { return remote.Below(name, answer) })
}

// equal reports whether l and o keep the same texts.
func (l lacking) equal(o lacking) bool {
	return slices.Equal(l.lost, o.lost) && l.set.Partial == o.set.Partial && slices.Equal(l.set.Unknown, o.set.Unknown)
}

func newServer(f remote.Fetcher, name, address string, log *slog.Logger) *server {
	s := &server{State: remote.NewState(name, log, 1), source: name, fetcher: f, given: make(chan struct{}, 1)}
	s.Use(address)
	return s
}

// A heard is the version of a server that was last used. It is saved for restarts.
type heard struct {
	version uint64 // of the last set that was used; 0: unknown
	counter string // see remote.Set
	doubted bool   // an older set came; all sets are held until nothing is missing, whatever their version
}

const heardFormat = "%d %t %q\n"

func (h heard) encode() []byte { return fmt.Appendf(nil, heardFormat, h.version, h.doubted, h.counter) }

// older reports whether a set may be older than the one in use.
func (h heard) older(set *remote.Set) bool {
	v := numberOf(set)
	return v != 0 && h.version != 0 && (h.doubted || v < h.version || set.Counter != h.counter)
}

// why returns why an older set is held.
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

// loadHeard loads what an earlier run saved.
func (s *server) loadHeard(path string) {
	var h heard
	if data, err := os.ReadFile(path); err == nil {
		if _, err := fmt.Sscanf(string(data), heardFormat, &h.version, &h.doubted, &h.counter); err == nil {
			s.heard = h
		}
	}
}

var errFetcherEnded = errors.New("the work of asking the server has ended; beginning again")

// follow runs the fetcher until ctx ends, and restarts it if it fails.
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

// give stores a new set from the fetcher. It replaces an earlier set that was not processed yet.
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

// report records the result of an exchange with the server for status.
func (s *server) report(err error) {
	if err == nil {
		s.Watching(0)
	} else {
		s.Fail(0, err)
	}
}

// reload makes the fetcher poll the server now, if it supports that.
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

// textOf returns the text with this name in a set, or nil.
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
