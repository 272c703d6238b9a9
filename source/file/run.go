package file

import (
	"context"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"

	"svcproxy.dev/svcproxy/internal/times"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/disk"
	"svcproxy.dev/svcproxy/source/read"
	"svcproxy.dev/svcproxy/source/watch"
)

// Run implements source.Source. It returns nil when ctx ends, and never before. A disk that does not answer can delay that:
// callers bound how long they wait.
func (s *Source) Run(ctx context.Context, sink source.Sink) error {
	if s.server != nil {
		s.server.begun = time.Now()
		s.background.Go(func() { s.server.follow(ctx) })
		s.run(ctx, sink)
		return nil
	}
	s.background.Go(func() { watch.WarnRemote(s.log, s.dir, s.poll, s.statfs) })
	s.open = watch.New
	s.openWatcher()
	defer func() {
		if s.watcher != nil {
			s.watcher.Close()
		}
	}()
	s.mounts = watch.OpenMounts()
	defer s.mounts.Close()
	s.run(ctx, sink)
	return nil
}

func (s *Source) run(ctx context.Context, sink source.Sink) {
	var events <-chan fsnotify.Event
	var errs <-chan error
	var given <-chan struct{}
	if s.server != nil {
		given = s.server.given
	}
	if s.store != nil {
		s.store.Load()
		if s.server != nil {
			s.server.loadHeard(s.directory.statePath)
		} else {
			s.directory.loadID()
		}
		s.loadDecisions(time.Now())
		s.background.Go(func() { s.store.Run(ctx) })
	}
	defer s.background.Wait()
	next := newStepTimer()
	defer next.timer.Stop()
	for {
		if s.watcher != nil {
			events, errs = s.watcher.Events, s.watcher.Errors
		}
		select {
		case <-ctx.Done():
			return
		case <-s.reload:
			if s.reloaded.Swap(false) {
				s.forgetLost()
			}
			s.todo.all, s.todo.hash = true, true
			next.within(mergeTime)
		case ev := <-events:
			s.noteEvent(ev, next)
		case err := <-errs: // events were lost, in an overflow of the kernel's queue or else
			s.log.Warn("watching service files; listing all of them", "dir", s.dir, "err", err)
			s.todo.all = true
			next.within(mergeTime)
		case <-given:
			next.soon()
		case l := <-s.largeDone:
			if s.largeReads[l.name] == l { // else it was dropped
				l.ended = true
				next.soon()
			}
		case <-s.disks.Answered:
			s.todo.all = true
			next.within(mergeTime)
		case do := <-s.commands:
			do(sink)
			next.within(0)
		case <-next.timer.C:
			next.stepped(s.step(ctx, sink))
		}
	}
}

// step does the work there is and returns how long to wait for the next step, and whether it found out about any file. It does
// nothing when ctx ends meanwhile.
func (s *Source) step(ctx context.Context, sink source.Sink) (found bool, wait time.Duration) {
	patience := disk.FirstPatience
	if s.synced {
		patience = disk.Patience
	}
	s.disks.BeginStep(patience)
	s.pollContents()
	s.endTrial(sink)
	s.releaseIfOff(sink)
	find := s.findInDir
	if s.server != nil {
		find = s.findInSet
	}
	probes, wait, ok := find(ctx, sink)
	if !ok {
		return false, wait
	}
	if !s.synced {
		s.handFirst(probes, sink)
	} else {
		s.handChanges(probes, sink)
		s.releaseIfOff(sink) // what had to be judged again before
	}
	s.forgetEnded()
	s.steps++
	return len(probes) > 0, s.nextWait()
}

// findInDir finds out about files. It returns false when nothing can be concluded before the time to the next step.
func (s *Source) findInDir(ctx context.Context, sink source.Sink) (probes []probe, wait time.Duration, ok bool) {
	s.pollUnwatched()
	s.lookAtDue()
	todo := s.todo
	s.todo = newWork()

	probes = s.endedReads(todo)
	names, ok := s.prepareLook(todo)
	if !ok {
		s.todo.all, s.todo.hash = true, todo.hash
		s.handRecorded(ctx, sink)
		return nil, blindPoll, false
	}
	small, ok := s.lookAt(ctx, s.withoutLarge(names, todo), todo)
	if !ok {
		return nil, blindPoll, false
	}
	probes = append(probes, small...)
	missing := slices.ContainsFunc(probes, func(p probe) bool { return p.v == read.Gone })
	if missing && !s.sameDirectory() { // a file seems to be gone, too, when the directory has gone meanwhile
		s.todo.all, s.todo.hash = true, todo.hash
		return nil, mergeTime, false
	}
	return probes, 0, true
}

// pollContents schedules a read of all files when it is due. It does nothing for a server, whose sets are complete.
func (s *Source) pollContents() {
	if now := time.Now(); !now.Before(s.nextPoll) {
		if s.server == nil {
			s.todo.all, s.todo.hash = true, true
		}
		s.nextPoll = now.Add(s.poll)
		s.maintainStore()
	}
}

// lookAtDue adds to the work to do those files whose version counts by now: each is looked at
// once more before. Of one that takes something away the whole directory is looked at, too:
// what it had may have moved to a file of which no event has been read yet.
func (s *Source) lookAtDue() {
	arriving := s.arriving()
	for name, f := range s.waiting {
		if s.largeReads[name] == nil && !time.Now().Before(s.dueTime(f, arriving)) {
			s.todo.names[name] = true
			s.todo.all = s.todo.all || f.next == read.Gone || f.releases
		}
	}
}

// handRecorded hands on what is recorded, which is all there is at the start while the
// directory cannot be read.
func (s *Source) handRecorded(ctx context.Context, sink source.Sink) {
	if len(s.remembered()) == 0 {
		return
	}
	if known, ok := s.probeRecorded(ctx); ok {
		s.handFirst(known, sink)
	}
}

// probeRecorded returns probes of what is recorded, for a directory that cannot be read.
// It returns false when ctx ended before.
func (s *looks) probeRecorded(ctx context.Context) ([]probe, bool) {
	names := sortedNames(s.remembered())
	probes := make([]probe, len(names))
	for i, name := range names {
		probes[i] = probe{name: name, rules: s.rules, revision: s.revision.Load(), PathInfo: disk.PathInfo{Err: read.ErrDirAway}, at: time.Now()}
	}
	s.register(probes)
	return probes, forEach(ctx, len(probes), func(i int) {
		probes[i].examine(probes[i].PathInfo, s.directory.lastID.Dev, false)
		s.restore(ctx, &probes[i])
	})
}

// nextWait returns how long nothing needs to be done unless something happens.
func (s *Source) nextWait() time.Duration {
	until := s.nextPoll
	if s.todo.all || s.watchErr != "" {
		s.todo.all = true
		until = times.Earlier(until, time.Now().Add(blindPoll))
	}
	if s.server == nil {
		until = times.Earlier(until, time.Now().Add(unwatchedPoll))
	}
	if t := s.decisions.trial; t != nil {
		until = times.Earlier(until, t.Until)
	}
	arriving := s.arriving()
	for name, f := range s.waiting {
		if s.largeReads[name] == nil { // else it is looked at when that has ended
			until = times.Earlier(until, s.dueTime(f, arriving))
		}
	}
	if len(s.todo.names) > 0 {
		until = times.Earlier(until, time.Now().Add(mergeTime))
	}
	return time.Until(until)
}
