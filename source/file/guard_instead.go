package file

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/read"
)

// parseKept parses the text of a version that was accepted once.
func (s *restoring) parseKept(ctx context.Context, name string, data []byte) (*read.Version, error) {
	v := read.NewVersion(ctx, s.path(name), data, nil, s.copyRules(name, s.place.isLink(name)), s.parseCopy, nil)
	if f := source.FirstError(v.Faults); f != nil {
		return nil, fmt.Errorf("this version of %s cannot be used any more: %s", source.Quote(name), f)
	}
	return v, nil
}

// versionBefore returns what a trial goes back to: from its copy or, where that is lost, as this run knows it.
func (s *restoring) versionBefore(name string, v *read.Version) (*read.Version, error) {
	data, err := s.store.Text(name, v.ID)
	switch {
	case err == nil:
		return s.parseKept(context.Background(), name, data)
	case v.Size > 0: // it was parsed
		s.log.Error("restored a service file whose copy on disk is lost; this version will not survive a restart", "file", s.path(name), "err", err)
		return v, nil
	}
	return nil, err
}

// useInstead has these versions used, by file name, nil: nothing, whatever the files say. Where a trial ends with that, what services
// kept comes back, too.
func (s *restoring) useInstead(sink source.Sink, versions map[string]*read.Version, ends *trial, why string) {
	var ch source.Changes
	s.mu.Lock()
	p := s.newPlan(map[*state]*read.Version{})
	if ends != nil {
		s.decisions.end() // with what it goes back to: Accepted writes decisions, too
		p.back = ends.Kept
		for name := range ends.Kept {
			s.newLists[name] = true
		}
	}
	for name, v := range versions {
		f := s.files[name]
		if f == nil {
			f = s.newState(name)
			s.files[name] = f
		}
		f.seen, p.next[f] = cmp.Or(f.seen, read.Gone), cmp.Or(v, read.Gone)
	}
	for _, name := range sortedNames(versions) {
		f := s.files[name]
		if v := p.next[f]; v != read.Gone && p.of(f, v).Unfit {
			s.log.Error("cannot restore a service file to its version before the apply", "file", f.path, "err", p.of(f, v).AllFaults()[0].String())
			continue
		}
		s.unpin(name, f)
		s.replaceUsed(name, f, versions[name], why, &ch)
	}
	s.refit = true
	s.complete(p, &ch)
	s.keepStep()
	s.mu.Unlock()
	apply(sink, ch)
}

// replaceUsed has v used of f, nil: nothing. The caller holds s.mu.
func (s *restoring) replaceUsed(name string, f *state, v *read.Version, why string, ch *source.Changes) {
	now := time.Now()
	f.state, f.since, f.unlogged = source.RolledBack, now, false
	p := pin{State: source.RolledBack, Found: f.seen.ID, Since: now, Why: why}
	switch {
	case v == nil:
		if f.used != nil && !f.isList() {
			ch.Delete = append(ch.Delete, s.id(f))
		}
		if f.good != nil {
			s.forget(name, f.good)
		}
		f.used, f.good, f.bound, f.inUse, f.sent, f.claimedAt = nil, nil, nil, nil, nil, time.Time{}
		s.noteKeeping(f)
	case v.ID == f.seen.ID: // what the file says
		f.seen, f.used, f.state = v, v, source.Accepted
		s.handOn(f, ch)
		return
	default:
		p.Use, f.used = v.ID, v
		s.handOn(f, ch)
	}
	s.decisions.pin(name, &p)
	f.hold = &hold{pin: p}
	f.hold.log(s.log, f.path)
}
