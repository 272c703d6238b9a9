package file

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"slices"
	"strings"
	"time"

	"svcproxy.dev/svcproxy/source/disk"
)

// largeSize is the size from which on a file is read beside all others, in bytes. A
// smaller one takes some 10 ms at most, and what is renamed or written together is
// one step.
const largeSize = 64 << 10

// startLargeRead has a large file read. One whose result nobody wants any more makes room
// as soon as it can.
func (s *waits) startLargeRead(ctx context.Context, p probe) {
	l := &largeRead{probe: p, before: p.stamp}
	ctx, l.cancel = context.WithCancel(ctx)
	s.mu.Lock()
	if p.stamp != p.f.stamp {
		p.f.noteChange(p.at)
	}
	if p.stamp.FileID != p.f.stamp.FileID {
		s.lastChange = p.at
	}
	known := *p.f
	s.mu.Unlock()
	l.f = &known
	s.largeReads[l.name] = l
	s.background.Go(func() { s.readLarge(ctx, l) })
}

// readLarge reads what l is about, unless ctx ends before, and hands it over to Run.
func (s *waits) readLarge(ctx context.Context, l *largeRead) {
	defer l.cancel()
	size := min(l.stamp.Size, maxTexts)
	if s.texts.Acquire(ctx, size) != nil {
		return
	}
	defer s.texts.Release(size)
	t, ok := s.disks.ReadBeside(ctx, l.f.path, l.PathInfo, l.rules.MaxSize())
	select {
	case s.slots <- struct{}{}:
	case <-ctx.Done():
		return
	}
	l.take(ctx, t, ok, s.parse)
	s.assess(&l.probe)
	<-s.slots
	select {
	case s.largeDone <- l:
	case <-ctx.Done():
	}
}

// endedReads returns what was found of the large files that have been read. One that has
// changed meanwhile is to be looked at again: its name goes to todo.
func (s *waits) endedReads(todo work) (probes []probe) {
	for name, l := range s.largeReads {
		switch {
		case !l.ended:
		case s.outdated(l, cmp.Or(l.stamp, l.before)):
			s.cancelRead(l)
			todo.names[name] = true
		default:
			l.at, l.f = time.Now(), s.files[name]
			if seen := l.f.seen; seen != nil && l.v.Same(cmp.Or(seen.Original, seen)) {
				l.v = seen // which may have come to fit its lists, or not to
			}
			probes = append(probes, l.probe)
		}
	}
	slices.SortFunc(probes, func(a, b probe) int { return strings.Compare(a.name, b.name) })
	return probes
}

// outdated reports whether there is no use in reading a file that had this stamp.
// One that changes all the time is read nevertheless, or it never would be.
func (s *waits) outdated(l *largeRead, was disk.Stamp) bool {
	var is disk.Stamp
	f := s.files[l.name]
	if f == nil { // its removal, which was held, went through meanwhile: it is a new file
		return true
	}
	now := s.disks.Follow(f.path, l.PathInfo)
	if now.Err == nil {
		is = disk.StampOf(now.Info)
	}
	switch {
	case l.revision != s.revision.Load():
		return true
	case is == was, now.Err == disk.ErrNoAnswer:
		return false
	}
	return errors.Is(now.Err, fs.ErrNotExist) || f.changingSince.IsZero() || time.Since(f.changingSince) < maxWait
}

// cancelRead forgets a reading, whatever becomes of it.
func (s *waits) cancelRead(l *largeRead) {
	l.cancel()
	delete(s.largeReads, l.name)
}

// withoutLarge returns the names that no reading is about. Of the others it drops the reading that
// is overtaken, or makes the file be looked at when it has ended.
func (s *waits) withoutLarge(names []string, todo work) []string {
	return slices.DeleteFunc(names, func(name string) bool {
		l := s.largeReads[name]
		switch {
		case l == nil:
			return false
		case !l.ended && s.outdated(l, l.before):
			s.cancelRead(l)
			return false
		}
		l.lookAgain, l.hash, l.renamed = true, l.hash || todo.hash, l.renamed || todo.renamed[name]
		return true
	})
}

// forgetEnded forgets the readings that have ended, once what they found is taken.
func (s *waits) forgetEnded() {
	for name, l := range s.largeReads {
		if !l.ended {
			continue
		}
		delete(s.largeReads, name)
		if l.lookAgain {
			s.todo.names[name] = true
			s.todo.hash = s.todo.hash || l.hash
			s.todo.renamed[name] = s.todo.renamed[name] || l.renamed
		}
	}
}
