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

// firstPatience is how long the source waits at its start for the server before it uses the last accepted versions.
const firstPatience = 500 * time.Millisecond

// errNoText is the fault of a text that was accepted once, and now has neither an answer of the server nor a saved version.
var errNoText = errors.New("the server has not sent it since the start, and its last good version is lost")

// findInSet probes the texts that changed in the newest set. It returns false if there is no set yet, and must then be called
// again after wait, or if ctx ended.
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

// takeSet uses the newest set. If doubt returns a reason, it marks the set as held. An older set is not used, and stays in next
// to be checked again.
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

// useSet makes set the current set, and adds the texts that it changes to s.todo. A missing text stays in use if the set leaves
// its state unknown, or if one of the answers in lost may have lost it.
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
		srv.Stale(fmt.Sprintf("STALE: the server has not sent all of its texts since the start at %s; the rest are as last known", clock(srv.begun)))
	} else {
		srv.Synced()
	}
}

// addChanged adds the names of texts that differ between two sorted lists.
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

// doubt returns why a set is held, or an empty reason if it is used completely. An older set is not used at all. Any other held
// set is used, except that texts that the answers in lost may have lost stay in use. A set is held until nothing is missing, even
// if its version has risen meanwhile: a server may be filled gradually, and the version of a restored server eventually exceeds
// the one in use.
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

// countLacks counts in a the known texts, and those of them that are missing from a set. In an older set all missing texts are
// counted, otherwise only those that one of these answers may have lost. It returns the answers that have lost a text.
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

// noteHeard records the version of the server, and saves it for a restart.
func (s *looks) noteHeard(h heard) {
	if h != s.server.heard && s.store != nil {
		s.store.PutDirectory(h.encode())
	}
	s.server.heard = h
}

// allows reports whether [guard] allow_empty lists an answer of the server, or the source, so that it is used even if it became
// empty.
func (s *server) allows(answer string) bool {
	names := *s.allowed.Load()
	return slices.Contains(names, answer) || slices.Contains(names, s.source)
}

// eachKnown visits the names of texts that are in use, and of those in the state directory that are not loaded yet.
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

// lookAtTexts determines the current version of each text in todo. It returns false if ctx ended first.
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
		if left && p.good != nil { // keep it, as if the server had sent it
			p.v = p.good
		}
	})
}

// bounded returns a text, or the same error as for a file if the text is too large.
func (s *looks) bounded(data []byte) ([]byte, error) {
	if most := s.rules.MaxSize(); len(data) > most {
		return nil, disk.TooLargeError(most)
	}
	return data, nil
}

// admit uses a held answer of the server, including the changes that the guard would hold. It reports whether an answer was
// held.
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
