package file

import (
	"bytes"
	"cmp"
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
		s.useSet(&remote.Set{Partial: true}, false)
	}
	todo := s.todo
	s.todo = newWork()
	if probes, ok = s.lookAtTexts(ctx, todo); !ok {
		s.todo.all = true
	}
	return probes, blindPoll, ok
}

// takeSet has the newest set used, unless it is in doubt: one that is older than what is in use waits.
func (s *looks) takeSet() {
	srv := s.server
	now := srv.next.Swap(nil)
	set := cmp.Or(now, srv.set.Load())
	if set == nil {
		return
	}
	why, older := s.doubt(set)
	if why == "" {
		srv.Release(0)
	} else {
		srv.Hold(0, why)
	}
	if older {
		srv.next.CompareAndSwap(nil, now)
	} else {
		s.useSet(set, why != "")
	}
}

// useSet adds to the work to do what a set changes. What one lacks that is incomplete, or in doubt, stays.
func (s *looks) useSet(set *remote.Set, doubt bool) {
	srv := s.server
	was, lacked := srv.set.Swap(set), srv.lacking
	srv.lacking = doubt || set.Partial
	if was == nil || lacked && (was != set || !srv.lacking) {
		s.todo.all = true
	} else if was != set {
		addChanged(s.todo.names, was.Texts, set.Texts)
	}
	if v := numberOf(set); v != srv.newest && v != 0 {
		if srv.newest = v; s.store != nil {
			s.store.PutDirectory(fmt.Appendf(nil, "%d\n", v))
		}
	}
	if set.Partial {
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

// doubt returns why a set is held; empty: it is used. One that is older than what is in use is not used at all, and of another
// one only what it lacks stays.
func (s *looks) doubt(set *remote.Set) (why string, older bool) {
	srv := s.server
	if set == srv.admits {
		return "", false
	}
	empty := set.Empty
	if len(set.Texts) == 0 && !set.Partial && len(empty) == 0 {
		empty = []string{s.source}
	}
	empty = slices.DeleteFunc(slices.Clone(empty), srv.allows)
	a := remote.Answer{Lists: len(set.Texts), Version: numberOf(set), Newest: srv.newest}
	older = a.Version != 0 && a.Version < a.Newest && !srv.allows(s.source)
	if len(empty) == 0 && !older {
		return "", false
	}
	s.eachKnown(func(name string) {
		if a.Known++; textOf(set, name) == nil {
			a.Lacks++
		}
	})
	switch {
	case a.Lacks == 0:
		return "", false
	case older || a.Lists == 0:
		return a.Doubt("service files"), older
	}
	return fmt.Sprintf("%s lists no service files, and %d of %d that were known are missing", source.Excerpt(empty[0]), a.Lacks, a.Known), false
}

// allows reports whether an answer of the server, or any of the source, is used also where it became empty.
func (s *server) allows(answer string) bool {
	names := *s.allowed.Load()
	return slices.Contains(names, answer) || slices.Contains(names, s.source)
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
	srv.admits = cmp.Or(srv.next.Load(), srv.set.Load())
	if probes, _, ok := s.findInSet(ctx, sink); ok {
		s.handChanges(probes, sink)
	}
	s.log.Info("the answer of the server is confirmed", s.where)
	return true
}
