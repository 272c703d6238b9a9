package file

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
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
		s.useSet(&remote.Set{Partial: true}, nil)
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
	why, lost, older := s.doubt(set)
	if why == "" {
		srv.Release(0)
	} else {
		srv.Hold(0, why)
	}
	if older {
		srv.next.CompareAndSwap(nil, now)
	} else {
		s.useSet(set, lost)
	}
}

// useSet adds to the work to do what a set changes. What it lacks stays where the server has not spoken of it, or where these
// answers may have lost it.
func (s *looks) useSet(set *remote.Set, lost []string) {
	srv := s.server
	was, had := srv.set.Swap(set), srv.lacks
	srv.lacks = lacking{set, lost}
	switch {
	case was == nil, !srv.lacks.equal(had):
		s.todo.all = true
	case was != set:
		addChanged(s.todo.names, was.Texts, set.Texts)
	}
	if v := numberOf(set); v != 0 {
		s.noteHeard(heard{version: v, counter: set.Counter})
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
// one stays what these answers may have lost. That ends when nothing is missing: a server may be filled bit by bit, and the
// version of one that was restored passes the one in use.
func (s *looks) doubt(set *remote.Set) (why string, lost []string, older bool) {
	srv := s.server
	if set == srv.admits {
		return "", nil, false
	}
	lost = slices.Concat(srv.empty, set.Empty)
	if len(set.Texts) == 0 && !set.Partial && len(set.Unknown)+len(lost) == 0 {
		lost = append(lost, s.source)
	}
	slices.Sort(lost)
	lost = slices.DeleteFunc(slices.Compact(lost), srv.allows)
	older = srv.heard.older(set) && !srv.allows(s.source)
	a := remote.Answer{Lists: len(set.Texts), Version: numberOf(set), Newest: srv.heard.version}
	if len(lost) > 0 || older {
		lost = s.countLacks(set, lost, older, &a)
	}
	srv.empty = lost
	switch {
	case a.Lacks == 0:
		return "", nil, false
	case older:
		s.noteHeard(heard{srv.heard.version, srv.heard.counter, true})
		return srv.heard.why(set, a), nil, true
	case a.Lists+len(set.Unknown) == 0:
		return a.Doubt("service files"), lost, false
	}
	lists := "lists"
	if !slices.Contains(set.Empty, lost[0]) {
		lists = "listed"
	}
	return fmt.Sprintf("%s %s no service files, and %d of %d that were known are missing", source.Excerpt(lost[0]), lists, a.Lacks, a.Known), lost, false
}

// countLacks counts in a what was known, and what of that a set lacks which these answers may have lost: all where it is older.
// It returns those of the answers.
func (s *looks) countLacks(set *remote.Set, answers []string, older bool, a *remote.Answer) []string {
	lost := map[string]bool{}
	s.eachKnown(func(name string) {
		a.Known++
		if textOf(set, name) != nil || set.Leaves(name) {
			return
		}
		i := slices.IndexFunc(answers, func(answer string) bool { return remote.Below(name, answer) })
		if i >= 0 {
			lost[answers[i]] = true
		}
		if i >= 0 || older {
			a.Lacks++
		}
	})
	return slices.DeleteFunc(answers, func(answer string) bool { return !lost[answer] })
}

// noteHeard notes what was heard, over restarts too.
func (s *looks) noteHeard(h heard) {
	if h != s.server.heard && s.store != nil {
		s.store.PutDirectory(h.encode())
	}
	s.server.heard = h
}

// allows reports whether an answer of the server, or any of the source, is used also where it became empty.
func (s *server) allows(answer string) bool {
	names := *s.allowed.Load()
	return slices.Contains(names, answer) || slices.Contains(names, s.source)
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
	set, lacks := s.server.set.Load(), s.server.lacks
	names := maps.Clone(todo.names)
	if todo.all {
		for i := range set.Texts {
			names[set.Texts[i].Name] = true
		}
		for name := range s.files {
			names[name] = true
		}
		if lacks.any() || s.keepsMissing() {
			maps.Copy(names, s.remembered())
		}
	}
	if s.synced {
		maps.DeleteFunc(names, func(name string, _ bool) bool { return textOf(set, name) == nil && lacks.keeps(name) })
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
		left := t == nil && lacks.keeps(p.name)
		switch {
		case t != nil:
			size := min(int64(len(t.Data)), maxTexts)
			if s.texts.Acquire(ctx, size) != nil {
				return
			}
			defer s.texts.Release(size)
			p.rules.From.Signed = t.Signed
			data, err := s.bounded(t.Data)
			p.v = p.version(ctx, data, err, s.parse)
		case left:
			p.v = p.unreadVersion(errNoText)
		default:
			p.v = read.Gone
		}
		if s.store != nil && !s.synced {
			s.restore(ctx, p)
		}
		if left && p.good != nil { // as if the server had it
			p.v = p.good
		}
	})
}

// bounded returns a text, or the error of a file that is as large, where that is too large.
func (s *looks) bounded(data []byte) ([]byte, error) {
	if most := s.rules.MaxSize(); len(data) > most {
		return nil, disk.TooLargeError(most)
	}
	return data, nil
}

// admit has an answer of the server used that is held, with what the guard would hold of that. It reports whether there is one.
func (s *looks) admit(ctx context.Context, sink source.Sink) bool {
	srv := s.server
	if srv == nil || srv.Held() == 0 {
		return false
	}
	srv.admits = cmp.Or(srv.next.Load(), srv.set.Load())
	srv.empty = nil
	if probes, _, ok := s.findInSet(ctx, sink); ok {
		s.handChanges(probes, sink)
	}
	s.log.Info("the answer of the server is confirmed", s.where)
	return true
}
