package file

import (
	"bytes"
	"cmp"
	"errors"
	"io/fs"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/internal/times"
	"svcproxy.dev/svcproxy/source/disk"
	"svcproxy.dev/svcproxy/source/read"
)

// A text that is cut off can be valid, so what takes something away may be half
// written, and waits: until its file has been left alone for a while, and nobody has
// it open to write it. It waits for its own file only: each has its own time.

// mayBePartial reports whether v, found where old was accepted, may be a half-written
// text. beginning: its text is a beginning of old's; placed: it was
// renamed into its place, and so is whole.
func mayBePartial(old, v *read.Version, beginning, placed bool) bool {
	return !placed && (v.Broken || beginning || old.Exceeds(v))
}

// assess finds out what observe needs to know of a version that is new, or waits.
func (s *waits) assess(p *probe) {
	f := p.f
	switch p.v {
	case nil: // as at the last look
		p.partial = f.next != nil && f.partial && !p.renamed
	case read.Gone, f.seen, f.used, p.good:
		return
	default:
		s.compare(p)
	}
	quiet := p.at.Sub(p.lastChanged()) >= quietTime
	long := !f.changingSince.IsZero() && p.at.Sub(f.changingSince) >= busyTime
	if p.partial && !p.referred && (quiet || long) { // what does not exist nobody writes
		p.complete, p.openForWrite = s.writersOf(p)
	}
}

// compare finds out whether p's version may be half written.
func (s *waits) compare(p *probe) {
	f := p.f
	p.renamed = p.renamed || f.stamp != (disk.Stamp{}) && p.wasReplaced()
	p.releases = !p.v.Broken && f.used != nil && f.used.ClaimsBeyond(p.v)
	for _, old := range []*read.Version{f.used, p.accepted, p.good} {
		if old != nil {
			p.partial = p.partial || mayBePartial(old, p.v, s.isPrefix(f, p.v, old), p.renamed)
		}
	}
	p.partial = p.partial || p.v.Broken && !p.renamed
}

// wasReplaced reports whether another file was put in the place of p's, not written
// there: a rename is a change of it, and not of its contents.
func (p *probe) wasReplaced() bool {
	was := p.f.stamp
	return p.stamp.FileID != was.FileID && p.stamp.Mtime != p.stamp.Ctime || p.f.link && p.target != p.f.target
}

// isPrefix reports whether the text of v is a beginning of old's, or may be.
func (s *waits) isPrefix(f *state, v, old *read.Version) bool {
	if v.Broken || v.Size >= old.Size {
		return false
	}
	if s.store == nil { // nobody drops texts
		return bytes.HasPrefix(old.Data, v.Data)
	}
	text, _ := disk.Ask(s.disks, s.store.Dir(), func() []byte { return s.store.TextOf(f.name, old) })
	return text == nil || bytes.HasPrefix(text, v.Data)
}

// writersOf says whether it is certain that p's file has been read whole, for nobody has it open to
// write it, or that it has not.
func (s *waits) writersOf(p *probe) (none, some bool) {
	path, is := p.f.path, p.stamp
	type writers struct{ none, some bool }
	w, _ := disk.Ask(s.disks, p.ContentPath(path), func() (w writers) {
		w.none, w.some = checkWriters(path, is)
		return w
	})
	return w.none, w.some
}

// checkWriters is writersOf for a path at which there was a file with this stamp. Where a process has
// it open the kernel gives no lease, fcntl(2). Some file systems have no leases.
func checkWriters(path string, was disk.Stamp) (none, some bool) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return false, errors.Is(err, fs.ErrNotExist)
	}
	defer f.Close()
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_RDLCK); err != nil {
		return false, errors.Is(err, unix.EAGAIN)
	}
	defer func() { _, _ = unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_UNLCK) }() // closing it does the same
	info, err := f.Stat()
	none = err == nil && disk.StampOf(info) == was
	return none, !none
}

// wait sets when f.next counts, after a look that found it, or found it changed.
func (f *state) wait(p *probe) {
	f.partial = p.partial
	switch {
	case f.next == read.Gone:
		f.due = f.missingSince.Add(goneTime)
	case !p.partial || p.complete:
		f.due = p.at
	case p.openForWrite:
		f.due = f.dueOpen(p)
	default:
		f.due = times.Earlier(p.lastChanged().Add(quietTime), f.changingSince.Add(maxWait))
	}
}

// waitOn sets when f.next counts after a look that found it as it was.
func (f *state) waitOn(p *probe) {
	switch {
	case f.next == nil:
	case p.renamed, p.complete: // told late
		f.due = times.Earlier(f.due, p.at)
	case p.openForWrite:
		f.due = f.dueOpen(p)
	}
}

// dueOpen returns when a file is to be looked at again that a process has open.
func (f *state) dueOpen(p *probe) time.Time {
	return times.Earlier(p.at.Add(openPoll), f.changingSince.Add(maxWait))
}

// waitingSince returns when what waits was first found.
func (f *state) waitingSince() time.Time {
	if f.next == read.Gone {
		return f.missingSince
	}
	if f.changingSince.IsZero() {
		return f.changedAt
	}
	return f.changingSince
}

// dueTime returns when f.next counts. A file that is gone may come back under another
// name, so it does not count while the directory is changing (arriving: another file is
// being written); and what a file does not claim any more may have moved to one that is
// still being read.
func (s *waits) dueTime(f *state, arriving bool) time.Time {
	due := f.due
	switch most := f.missingSince.Add(maxWait); {
	case f.next != read.Gone:
	case arriving:
		due = most
	default:
		due = times.Later(due, times.Earlier(s.lastChange.Add(quietTime), most))
	}
	if (f.next == read.Gone || f.releases) && s.othersBeingRead(f) {
		due = times.Later(due, f.waitingSince().Add(maxWait))
	}
	return due
}

// arrives reports whether f is new, and may be half written.
func (f *state) arrives() bool {
	return f.seen == nil && f.next != nil && f.next != read.Gone && f.partial
}

// arriving reports whether a file that waits arrives.
func (s *waits) arriving() bool {
	for _, f := range s.waiting {
		if f.arrives() {
			return true
		}
	}
	return false
}

// othersBeingRead reports whether a file other than f has changed and is still being read.
// What f does not claim any more may be in there.
func (s *waits) othersBeingRead(f *state) bool {
	for _, l := range s.largeReads {
		if l.findsChange() && l.f.path != f.path {
			return true
		}
	}
	return false
}

// observe notes what was found. first: it is the first look at the whole directory.
func (f *state) observe(p *probe, first bool) {
	changed := p.stamp != f.stamp
	if changed || p.v != nil {
		c := p.stamp.Ctime
		f.racy = cmp.Or(p.opened, p.at).Sub(time.Unix(c.Unix())) < disk.RacyWindow(c.Nsec)
	}
	if changed || p.v != nil && p.v != f.next && p.v != f.seen {
		f.noteChange(p.at)
	}
	f.looked = p.looked
	switch {
	case p.v == f.next && !changed, p.v == nil:
		f.waitOn(p)
	case p.v == f.seen:
		f.next = nil
		if p.v == f.used {
			f.changingSince = time.Time{}
		}
	default:
		if p.v == read.Gone && f.next != read.Gone {
			f.missingSince = p.at
		}
		f.next, f.releases = p.v, p.releases
		if first && f.used == nil {
			f.due = p.at
		} else {
			f.wait(p)
		}
	}
}

// noteChange notes that the file was found changed.
func (f *state) noteChange(at time.Time) {
	if f.changingSince.IsZero() || f.next == nil && at.Sub(f.changedAt) >= quietTime {
		f.changingSince = at
	}
	f.changedAt = at
}
