package file

import (
	"context"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"

	"svcproxy/source"
)

// step does the work there is and returns how long to wait for the next step. It does
// nothing when ctx ends meanwhile.
func (s *Source) step(ctx context.Context, sink source.Sink) time.Duration {
	if now := time.Now(); !now.Before(s.nextPoll) {
		s.todo.all, s.todo.hash = true, true
		s.nextPoll = now.Add(s.poll)
		s.upkeep()
	}
	s.glance()
	arriving := s.arriving()
	for name, f := range s.waiting {
		if s.loads[name] == nil && !time.Now().Before(s.dueTime(f, arriving)) {
			s.todo.names[name] = true                 // looked at once more before it counts
			s.todo.all = s.todo.all || f.next == gone // and so is the directory
		}
	}
	todo := s.todo
	s.todo = newWork()

	probes := s.ended(todo)
	names, ok := s.names(todo)
	if !ok {
		s.todo.all, s.todo.hash = true, todo.hash
		if !s.synced && s.store != nil && len(s.store.recorded()) > 0 {
			if known, ok := s.remember(ctx); ok {
				s.begin(known, sink) // all there is
			}
		}
		return blindPoll
	}
	found, ok := s.look(ctx, s.besides(names, todo), todo)
	if !ok {
		return blindPoll
	}
	if probes = append(probes, found...); !s.trust(probes) {
		s.todo.all, s.todo.hash = true, todo.hash
		return merge
	}
	if !s.synced {
		s.begin(probes, sink)
	} else {
		s.settle(probes, sink)
	}
	s.finish()
	return s.pause()
}

// trust reports whether what was found is true of the directory that was listed. A
// file seems to be gone, too, when the directory has gone meanwhile.
func (s *Source) trust(probes []probe) bool {
	missing := slices.ContainsFunc(probes, func(p probe) bool { return p.v == gone })
	return !missing || s.home.same()
}

// remember returns probes of what is recorded, for a directory that cannot be read.
// It returns false when ctx ended before.
func (s *Source) remember(ctx context.Context) ([]probe, bool) {
	names := s.store.recorded()
	slices.Sort(names)
	probes := make([]probe, len(names))
	for i, name := range names {
		probes[i] = probe{name: name, max: s.maxSize, rules: s.rules.Load(), err: errAway, at: time.Now()}
	}
	s.register(probes)
	return probes, s.each(ctx, len(probes), func(i int) {
		probes[i].look(false)
		s.restore(ctx, &probes[i])
	})
}

// pause returns how long nothing needs to be done unless something happens.
func (s *Source) pause() time.Duration {
	until := s.nextPoll
	if s.todo.all || s.watchErr != "" {
		s.todo.all = true
		until = earlier(until, time.Now().Add(blindPoll))
	}
	until = earlier(until, time.Now().Add(glanceTime))
	arriving := s.arriving()
	for name, f := range s.waiting {
		if s.loads[name] == nil { // else it is looked at when that has ended
			until = earlier(until, s.dueTime(f, arriving))
		}
	}
	if len(s.todo.names) > 0 {
		until = earlier(until, time.Now().Add(merge))
	}
	return time.Until(until)
}

// Run implements source.Source. It returns nil when ctx ends, and never before.
func (s *Source) Run(ctx context.Context, sink source.Sink) error {
	warnRemote(s.log, s.dir, unix.Statfs)
	s.open = newWatcher
	s.openWatcher()
	defer func() {
		if s.watcher != nil {
			s.watcher.close()
		}
	}()
	s.mounts = openMounts()
	defer s.mounts.close()
	s.run(ctx, sink)
	return nil
}

func (s *Source) run(ctx context.Context, sink source.Sink) {
	var events <-chan fsnotify.Event
	var errs <-chan error
	if s.store != nil {
		s.store.load()
		s.home.load()
		s.others.Go(func() { s.store.run(ctx) })
	}
	defer s.leave()
	next := newAlarm()
	defer next.timer.Stop()
	for {
		if s.watcher != nil {
			events, errs = s.watcher.Events, s.watcher.Errors
		}
		select {
		case <-ctx.Done():
			return
		case <-s.reload:
			if s.settled.Swap(false) {
				s.giveUp()
			}
			s.todo.all, s.todo.hash = true, true
			next.within(merge)
		case ev := <-events:
			s.note(ev, next)
		case err := <-errs: // events were lost, in an overflow of the kernel's queue or else
			s.log.Warn("watching service files; listing all of them", "dir", s.dir, "err", err)
			s.todo.all = true
			next.within(merge)
		case l := <-s.loaded:
			if s.loads[l.name] == l { // else it was dropped
				l.ended = true
				next.soon()
			}
		case <-next.timer.C:
			next.rings(s.step(ctx, sink))
		}
	}
}

// leave waits for the end of what was begun beside Run, but not for a slow disk or
// a long text: what is lost then, the files still say.
func (s *Source) leave() {
	done := make(chan struct{})
	go func() { defer close(done); s.others.Wait() }()
	select {
	case <-done:
	case <-time.After(stopTime):
	}
	clear(s.loads)
}
