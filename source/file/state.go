package file

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"svcproxy/source"
)

// racyTime is how much older than its reading a file's last change must be for
// its stamp to be trusted: the kernel's clock for files may go in ticks (10 ms
// at HZ=100), and two writes in one tick give the same stamp.
const racyTime = 50 * time.Millisecond

// coarseTick is what stamps of whole seconds may count in: vfat has steps of 2 s.
const coarseTick = 2 * time.Second

// racy returns for how long a stamp with these nanoseconds may be of more than one version.
func racy(nsec int64) time.Duration {
	if nsec == 0 {
		return coarseTick + racyTime
	}
	return racyTime
}

// A state is what is known of one name in the directory.
type state struct {
	path string

	// As last looked at.
	link      bool   // a symbolic link
	elsewhere bool   // it may be written under another name: a hard link, or mounted from there
	lost      bool   // a power failure, and nobody who removed it, may be why it does not exist
	stamp     stamp  // zero: none
	target    string // of a link
	racy      bool   // the stamp may be of more than one version

	seen *version // the last that counted; nil: none yet
	used *version // the last that was handed on, nil: none; seen, while that is not broken
	next *version // counts from due on, unless it changes; nil: nothing new
	due  time.Time

	frees   bool // next lacks something that used claims
	partial bool // next may be half written

	touched time.Time // when it was last found changed
	held    time.Time // since when it has been changing, never quiet, and without what was accepted; zero: it is not
	missing time.Time // since when next is gone

	state source.FileState
	since time.Time

	// What became of what was handed on.
	sent    []*version     // neither accepted yet nor overtaken by one that was
	good    *version       // the last that was accepted; nil: none
	untold  bool           // that used is accepted is not logged yet
	quiet   bool           // it is of the first look: only those who debug want to know
	claimed time.Time      // when a version was accepted for the first time; zero: never, or not known
	damage  []source.Fault // of the copy of the last good version
}

// A probe is a look at one name.
type probe struct {
	name   string
	f      *state
	max    int         // size of the largest file to read
	rules  int64       // see Source.Judge
	info   fs.FileInfo // of the name itself, if it is a link
	err    error       // why there is no info
	at     time.Time
	opened time.Time // before its text was read, if that is not at
	stamp  stamp
	target string   // of a link
	v      *version // nil: it has not changed since the last look

	home      fileID // the directory
	elsewhere bool   // see state

	beside  bool // its text is not read yet, see readBeside
	placed  bool // it was renamed into its place
	partial bool // it may be half written; where v is nil, what waits
	written bool // but is not
	frees   bool // it lacks something that the file claims
	open    bool // and somebody has it open to write it

	accepted *version // f.good, which another goroutine sets

	// Of a file that was accepted before this start, at the first look.
	last   record
	good   *version       // what last says; nil: there is none, or it is damaged
	damage []source.Fault // which tells why
}

// look finds out which version p's file has, as far as its text need not be read.
// It returns true when that is to be read.
func (p *probe) look(hash bool) bool {
	info, err := p.info, p.err
	if p.f.link {
		info, err = os.Stat(p.f.path)
	}
	switch {
	case p.err == errAway:
		p.v = p.unread(p.err)
		return false
	case errors.Is(p.err, fs.ErrNotExist) && p.f.lost:
		p.v = p.unread(errLost)
		return false
	case errors.Is(p.err, fs.ErrNotExist), err == nil && info.IsDir():
		p.v = gone
		return false
	case err != nil: // a link that leads nowhere too: the name stands, so nobody removed it
		p.v = p.unread(err)
		return false
	}
	p.stamp = stampOf(info)
	p.elsewhere = info.Sys().(*syscall.Stat_t).Nlink > 1 || p.stamp.dev != p.home.dev || isMounted(p.f.path)
	p.target = p.f.target
	return p.stamp != p.f.stamp || p.f.racy || hash
}

// load reads the text of p's file.
func (p *probe) load(ctx context.Context, parse parser) {
	if p.f.link {
		p.target, _ = filepath.EvalSymlinks(p.f.path)
	}
	var data []byte
	var err error
	p.opened = time.Now()
	data, p.stamp, err = readContent(p.f.path, p.max)
	if errors.Is(err, fs.ErrNotExist) && !p.f.link {
		p.v, p.stamp = gone, stamp{}
		return
	}
	p.v = p.version(ctx, data, err, parse)
}

// unread returns the version of a file whose text is not known.
func (p *probe) unread(why error) *version {
	return p.version(context.Background(), nil, why, nil)
}

// version returns the version with this text, parsed only when it is new, or was
// judged by other rules.
func (p *probe) version(ctx context.Context, data []byte, err error, parse parser) *version {
	id := idOf(data, err)
	var same *version
	for _, v := range []*version{p.f.seen, p.f.next, p.f.used} {
		if same == nil && v != nil && v.id == id {
			same = v
		}
	}
	if same != nil && same.judged.Load() == p.rules {
		return same
	}
	var before known
	for _, v := range []*version{p.f.used, p.f.seen, p.f.next} { // the last that has any
		if v != nil && v.known != nil {
			before = v.known
		}
	}
	v := newVersion(ctx, p.f.path, data, err, parse, before)
	if same != nil && slices.Equal(same.faults, v.faults) {
		v = same
	}
	v.judged.Store(p.rules)
	return v
}

// take notes what was found. first: it is the first look at the whole directory.
func (f *state) take(p *probe, first bool) {
	changed := p.stamp != f.stamp
	if changed || p.v != nil {
		c := p.stamp.ctime
		f.racy = cmp.Or(p.opened, p.at).Sub(time.Unix(c.Unix())) < racy(c.Nsec)
	}
	if changed || p.v != nil && p.v != f.next && p.v != f.seen {
		f.touch(p.at)
	}
	f.stamp, f.target, f.elsewhere = p.stamp, p.target, p.elsewhere
	switch {
	case p.v == f.next && !changed, p.v == nil:
		f.waitOn(p)
	case p.v == f.seen:
		f.next = nil
		if p.v == f.used {
			f.held = time.Time{}
		}
	default:
		if p.v == gone && f.next != gone {
			f.missing = p.at
		}
		f.next, f.frees = p.v, p.frees
		if first && f.used == nil {
			f.due = p.at
		} else {
			f.wait(p)
		}
	}
}

// touch notes that the file was found changed.
func (f *state) touch(at time.Time) {
	if f.held.IsZero() || f.next == nil && at.Sub(f.touched) >= quietTime {
		f.held = at
	}
	f.touched = at
}

// changed returns when p's file was last changed, and never a time after that was found.
func (p *probe) changed() time.Time {
	at := p.at
	if p.stamp == p.f.stamp && !p.f.touched.IsZero() {
		at = p.f.touched
	}
	if c := time.Unix(p.stamp.ctime.Unix()); p.stamp != (stamp{}) && c.Before(at) {
		return c
	}
	return at
}

// count makes f.next count. It returns false when the file is gone.
func (f *state) count(now time.Time) bool {
	v := f.next
	f.next = nil
	if v == gone {
		return false
	}
	f.seen = v
	if !v.broken {
		f.held = time.Time{}
	}
	was := f.state
	switch {
	case !v.broken:
		f.used, f.state, was = v, source.Accepted, ""
		f.untold = true
	case f.good != nil:
		f.state = source.Stale
	default:
		f.state = source.Refused
	}
	if f.state != was {
		f.since = now
	}
	return true
}

func (f *state) id() source.UnitID { return source.UnitID{Source: Name, Name: f.path} }

// services returns how many services of the file are in use.
func (f *state) services() int {
	if f.good == nil {
		return 0
	}
	return len(f.good.services)
}

// handed returns how many services of the file are, or were last, handed on.
func (f *state) handed() int {
	if f.used == nil {
		return 0
	}
	return len(f.used.services)
}

func (f *state) status() source.FileStatus {
	return source.FileStatus{
		Path: f.path, State: f.state, Since: f.since,
		Services: f.services(), Faults: slices.Concat(f.seen.faults, f.damage),
	}
}

// A line is something to log of a file.
type line struct {
	level slog.Level
	msg   string
	args  []any
}

func (l line) log(log *slog.Logger) { log.Log(context.Background(), l.level, l.msg, l.args...) }

// line says what became of a file; when all is well and quiet is asked for, to
// those only who debug.
func (f *state) line(quiet bool) line {
	l := line{level: slog.LevelInfo, msg: "service file accepted", args: []any{"file", f.path, "services", f.handed()}}
	switch f.state {
	case source.Stale:
		l.level, l.msg = slog.LevelWarn, "service file is broken: its services stay as last accepted"
	case source.Refused:
		l.level, l.msg = slog.LevelWarn, "service file is broken: it has no services until it is mended"
	case source.Accepted:
		if len(f.seen.faults) > 0 {
			l.level, l.msg = slog.LevelWarn, "service file accepted with warnings"
		} else if quiet {
			l.level = slog.LevelDebug
		}
	}
	if n := len(f.seen.faults); n > 0 {
		l.args = append(l.args, "faults", n, "first", f.seen.faults[0].String())
	}
	return l
}
