package file

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"
)

// large is the size from which on a file is read beside all others, in bytes. A
// smaller one takes some 10 ms at most, and what is renamed or written together is
// one step.
const large = 64 << 10

// readBeside has a large file read. One whose result nobody wants any more makes room
// as soon as it can.
func (s *Source) readBeside(ctx context.Context, p probe) {
	l := &load{probe: p, found: p.stamp, changed: p.stamp != p.f.stamp}
	ctx, l.cancel = context.WithCancel(ctx)
	s.mu.Lock()
	if l.changed {
		p.f.touch(p.at)
	}
	if p.stamp.fileID != p.f.stamp.fileID {
		s.changed = p.at
	}
	known := *p.f
	s.mu.Unlock()
	l.f = &known
	s.loads[l.name] = l
	s.others.Go(func() { s.load(ctx, l) })
}

// load reads what l is about, unless ctx ends before, and hands it over to Run.
func (s *Source) load(ctx context.Context, l *load) {
	defer l.cancel()
	select {
	case s.slots <- struct{}{}:
	case <-ctx.Done():
		return
	}
	l.probe.load(ctx, s.parse)
	s.judge(&l.probe)
	<-s.slots
	select {
	case s.loaded <- l:
	case <-ctx.Done():
	}
}

// ended returns what was found of the large files that have been read. One that has
// changed meanwhile is to be looked at again: its name goes to todo.
func (s *Source) ended(todo work) (probes []probe) {
	for name, l := range s.loads {
		switch {
		case !l.ended:
		case s.overtaken(l, l.stamp):
			s.drop(l)
			todo.names[name] = true
		default:
			l.at, l.f = time.Now(), s.files[name]
			probes = append(probes, l.probe)
		}
	}
	slices.SortFunc(probes, func(a, b probe) int { return strings.Compare(a.name, b.name) })
	return probes
}

// overtaken reports whether there is no use in reading a file that had this stamp.
// One that changes all the time is read nevertheless, or it never would be.
func (s *Source) overtaken(l *load, was stamp) bool {
	var is stamp
	f := s.files[l.name]
	info, err := os.Stat(f.path)
	if err == nil {
		is = stampOf(info)
	}
	switch {
	case l.rules != s.rules.Load():
		return true
	case is == was:
		return false
	}
	return errors.Is(err, fs.ErrNotExist) || f.held.IsZero() || time.Since(f.held) < longestTime
}

// drop forgets a load, whatever becomes of it.
func (s *Source) drop(l *load) {
	l.cancel()
	delete(s.loads, l.name)
}

// besides returns the names that no load is about. Of the others it drops the load that
// is overtaken, or makes the file be looked at when it has ended.
func (s *Source) besides(names []string, todo work) []string {
	return slices.DeleteFunc(names, func(name string) bool {
		l := s.loads[name]
		switch {
		case l == nil:
			return false
		case !l.ended && s.overtaken(l, l.found):
			s.drop(l)
			return false
		}
		l.again, l.hash, l.told = true, l.hash || todo.hash, l.told || todo.placed[name]
		return true
	})
}

// finish forgets the loads that have ended, once what they found is taken.
func (s *Source) finish() {
	for name, l := range s.loads {
		if !l.ended {
			continue
		}
		delete(s.loads, name)
		if l.again {
			s.todo.names[name] = true
			s.todo.hash = s.todo.hash || l.hash
			s.todo.placed[name] = s.todo.placed[name] || l.told
		}
	}
}
