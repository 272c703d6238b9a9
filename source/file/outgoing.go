package file

import (
	"time"

	"svcproxy.dev/svcproxy/internal/times"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/disk"
	"svcproxy.dev/svcproxy/source/keep"
	"svcproxy.dev/svcproxy/source/read"
)

// activate makes p's version count, and adds what follows to ch.
func (s *lists) activate(p *probe, ch *source.Changes) {
	f, at := p.f, p.at
	if p.good != nil && p.v.Broken { // before this start, as it seems
		at = times.Later(p.lastChanged(), p.last.At)
	}
	switch {
	case !f.markActive(at):
		delete(s.files, p.name)
		delete(s.keeping, p.name)
		s.forget(p.name, f.good)
		if f.used != nil && !f.isList() {
			ch.Delete = append(ch.Delete, s.id(f))
		}
	case f.state == source.Accepted:
		s.handOn(f, ch)
	case f.used != f.good:
		s.withdraw(f, ch)
	case f.isList() && f.used == nil:
		s.newLists[p.name] = true // files that refer to it say why there is none
	}
}

// handOn adds what is used of f to ch. A list goes on with the files that refer to it, see complete.
func (s *lists) handOn(f *state, ch *source.Changes) {
	if f.isList() {
		s.takeList(f)
		return
	}
	ch.Set = append(ch.Set, s.outgoing(f))
}

// takeList has what is used of a file of endpoints count as accepted: it claims nothing. The files that refer to it are
// handed on with it by complete. The caller holds s.mu.
func (s *lists) takeList(f *state) {
	name := f.name
	was := f.good
	f.good, f.sent, f.damage, f.unlogged = f.used, nil, nil, false
	s.newLists[name] = true
	if s.store == nil || f.used == nil {
		return
	}
	now := time.Now().Round(0)
	if f.claimedAt.IsZero() {
		f.claimedAt = now
	}
	s.entries[name] = keep.Entry{Record: keep.Record{Sum: f.used.ID, Since: f.claimedAt, At: now}, Version: f.used, Was: was} // see keepStep
}

// markActive has f.next count. It returns false when the file is gone.
func (f *state) markActive(now time.Time) bool {
	v := f.next
	f.next = nil
	if v == read.Gone {
		return false
	}
	f.seen = v
	if !v.Broken {
		f.changingSince = time.Time{}
	}
	was := f.state
	switch {
	case !v.Broken:
		f.used, f.state, was = v, source.Accepted, ""
		f.unlogged = true
	case f.good != nil:
		f.state = source.Stale
	default:
		f.state = source.Refused
	}
	if f.state != was {
		f.since = now
	}
	return true
}

// outgoing returns what is used of f as a unit for the sink, and notes it as sent. Without
// a store nobody tells what becomes of it: it is taken for accepted.
func (s *lists) outgoing(f *state) source.Unit {
	if s.store == nil {
		f.good = f.used
	} else if n := len(f.sent); n == 0 || f.sent[n-1].Version != f.used { // else only its lists are new
		f.sent = append(f.sent, handedVersion{Version: f.used})
		f.sent = f.sent[max(0, len(f.sent)-maxSent):]
	}
	u := source.Unit{ID: s.id(f), Version: f.used.Name(), Services: f.used.Services}
	if !f.claimedAt.IsZero() {
		u.Since = f.claimedAt.UnixNano()
	}
	if f.stamp != (disk.Stamp{}) {
		u.Changed = []time.Time{f.stamp.Changed()}
	}
	return u
}

// maxSent is how many versions of one file can be on their way. Only while the
// sink is busy with a long sync are there more than one or two.
const maxSent = 16

// withdraw takes back a version that was handed on and not accepted, for the
// file has become something else, which is broken.
func (s *lists) withdraw(f *state, ch *source.Changes) {
	f.used, f.sent, f.unlogged = f.good, nil, false
	if f.used == nil {
		ch.Delete = append(ch.Delete, s.id(f))
	} else {
		ch.Set = append(ch.Set, s.outgoing(f))
	}
}

func (s *table) id(f *state) source.UnitID { return source.UnitID{Source: s.source, Name: f.path} }

// apply hands changes on, if there are any.
func apply(sink source.Sink, ch source.Changes) {
	if len(ch.Set)+len(ch.Delete) > 0 {
		sink.Apply(ch)
	}
}

// forget drops the record of a file that was removed, and was in use as this version. The caller holds s.mu, and calls keepStep.
func (s *lists) forget(name string, was *read.Version) {
	if s.store != nil {
		s.entries[name] = keep.Entry{Was: was}
	}
}
