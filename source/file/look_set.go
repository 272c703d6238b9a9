package file

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/disk"
	"svcproxy.dev/svcproxy/source/read"
	"svcproxy.dev/svcproxy/source/remote"
)

// firstPatience is how long a start waits for what a server has before it goes on with what was last known.
const firstPatience = 500 * time.Millisecond

// errNoText says why nothing is known of a text that was accepted once.
var errNoText = errors.New("the server has not told of it since the start, and its last good version is lost")

// findInSet finds out about the texts of the newest set that are other than before. It returns false when nothing can be
// concluded before the time to the next step.
func (s *looks) findInSet(ctx context.Context, _ source.Sink) (probes []probe, wait time.Duration, ok bool) {
	srv := s.server
	if s.takeSet(); srv.set.Load() == nil {
		if left := time.Until(srv.begun.Add(firstPatience)); left > 0 {
			return nil, left, false
		}
		if !srv.beside && len(s.remembered()) == 0 {
			return nil, blindPoll, false
		}
		srv.set.Store(&remote.Set{Partial: true})
		s.takeSet()
		s.todo.all = true
	}
	todo := s.todo
	s.todo = newWork()
	if probes, ok = s.lookAtTexts(ctx, todo); !ok {
		s.todo.all = true
	}
	return probes, blindPoll, ok
}

// takeSet adds to the work to do what the newest set changes. What a set lacks that is incomplete, or in doubt, stays.
func (s *looks) takeSet() {
	srv := s.server
	now, was := srv.next.Swap(nil), srv.set.Load()
	switch {
	case now != nil && was != nil && !srv.lacking:
		addChanged(s.todo.names, was.Texts, now.Texts)
	case now != nil:
		s.todo.all = true
	case was == nil:
		return
	default:
		now = was
	}
	srv.set.Store(now)
	why := s.doubt(now)
	lacking := why != "" || now.Partial
	s.todo.all = s.todo.all || srv.lacking && !lacking
	srv.lacking = lacking
	if why != "" {
		srv.Hold(0, why)
	} else {
		srv.Release(0)
	}
	if now.Partial {
		srv.Stale(fmt.Sprintf("STALE: the server has not told of all that it has since the start of %s: the rest is as last known", clock(srv.begun)))
	} else {
		srv.Synced()
	}
}

// addChanged adds the names of texts that differ.
func addChanged(names map[string]bool, was, is []remote.Text) {
	for len(was)+len(is) > 0 {
		switch {
		case len(is) == 0 || len(was) > 0 && was[0].Name < is[0].Name:
			names[was[0].Name] = true
			was = was[1:]
		case len(was) == 0 || is[0].Name < was[0].Name:
			names[is[0].Name] = true
			is = is[1:]
		default:
			if was[0].Signed != is[0].Signed || !bytes.Equal(was[0].Data, is[0].Data) {
				names[is[0].Name] = true
			}
			was, is = was[1:], is[1:]
		}
	}
}

// doubt returns why a set takes nothing away before the operator confirms it; empty: what it lacks is gone.
func (s *looks) doubt(set *remote.Set) string {
	srv := s.server
	if set == srv.admits {
		return ""
	}
	empty := set.Empty
	if len(set.Texts) == 0 && !set.Partial && len(empty) == 0 {
		empty = []string{s.source}
	}
	empty = slices.DeleteFunc(slices.Clone(empty), srv.allows)
	a := remote.Answer{Lists: len(set.Texts), Version: numberOf(set), Newest: srv.newest}
	older := a.Version != 0 && a.Version < a.Newest && !srv.allows(s.source)
	if s.noteVersion(max(srv.newest, a.Version)); len(empty) == 0 && !older {
		return ""
	}
	s.eachKnown(func(name string) {
		if a.Known++; textOf(set, name) == nil {
			a.Lacks++
		}
	})
	switch {
	case a.Lacks == 0:
		return ""
	case older || a.Lists == 0:
		return a.Doubt("service files")
	}
	return fmt.Sprintf("%s lists no service files, and %d of %d that were known are missing", source.Excerpt(empty[0]), a.Lacks, a.Known)
}

// allows reports whether an answer of the server, or any of the source, is used also where it became empty.
func (s *server) allows(answer string) bool {
	names := *s.allowed.Load()
	return slices.Contains(names, answer) || slices.Contains(names, s.source)
}

// noteVersion notes which version a set must not be older than, over restarts too.
func (s *looks) noteVersion(v uint64) {
	if v != s.server.newest && s.store != nil {
		s.store.PutDirectory(fmt.Appendf(nil, "%d\n", v))
	}
	s.server.newest = v
}

// numberOf returns the version of a set, if it is a number.
func numberOf(set *remote.Set) uint64 {
	n, err := strconv.ParseUint(set.Version, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// eachKnown visits the texts that are in use or, before that, those of the state directory.
func (s *looks) eachKnown(visit func(name string)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name := range s.remembered() {
		visit(name)
	}
	for name, f := range s.files {
		if f.good != nil {
			visit(name)
		}
	}
}

// lookAtTexts finds out which version each of these texts has now. It returns false when ctx ended before.
func (s *looks) lookAtTexts(ctx context.Context, todo work) ([]probe, bool) {
	set, lacking := s.server.set.Load(), s.server.lacking
	names := maps.Clone(todo.names)
	if todo.all {
		for i := range set.Texts {
			names[set.Texts[i].Name] = true
		}
		for name := range s.files {
			names[name] = true
		}
		if lacking || s.keepsMissing() {
			maps.Copy(names, s.remembered())
		}
	}
	if lacking && s.synced {
		maps.DeleteFunc(names, func(name string, _ bool) bool { return textOf(set, name) == nil })
	}
	probes := make([]probe, 0, len(names))
	s.mu.Lock()
	for _, name := range sortedNames(names) {
		p := probe{name: name, f: s.files[name], rules: s.rules, revision: s.revision.Load(), at: time.Now(), PathInfo: disk.PathInfo{Err: errNoText}}
		if p.f == nil {
			p.f = s.newState(name)
			s.files[name] = p.f
		}
		p.accepted, p.certain, p.rules.From = p.f.good, true, s.place.origin(name)
		probes = append(probes, p)
	}
	s.mu.Unlock()
	return probes, forEach(ctx, len(probes), func(i int) {
		p := &probes[i]
		t := textOf(set, p.name)
		switch {
		case t != nil:
			p.rules.From.Signed = t.Signed
			p.v = p.version(ctx, t.Data, nil, s.parse)
		case lacking:
			p.v = p.unreadVersion(errNoText)
		default:
			p.v = read.Gone
		}
		if s.store != nil && !s.synced {
			s.restore(ctx, p)
		}
		if t == nil && lacking && p.good != nil { // as if the server had it
			p.v = p.good
		}
	})
}

// admit has an answer of the server used that is held, with what the guard would hold of that. It reports whether there is one.
func (s *looks) admit(ctx context.Context, sink source.Sink) bool {
	srv := s.server
	if srv == nil || srv.Held() == 0 {
		return false
	}
	srv.admits = srv.set.Load()
	s.noteVersion(numberOf(srv.admits))
	if probes, _, ok := s.findInSet(ctx, sink); ok {
		s.handChanges(probes, sink)
	}
	s.log.Info("the answer of the server is confirmed", s.where)
	return true
}
