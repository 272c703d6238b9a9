package file

import (
	"cmp"
	"context"
	"slices"
	"time"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/disk"
	"svcproxy.dev/svcproxy/source/keep"
	"svcproxy.dev/svcproxy/source/read"
)

// A state is what is known of one name in the directory.
type state struct {
	name, path string
	looked
	link      bool // a symbolic link
	maybeLost bool // a power failure, and nobody who removed it, may be why it does not exist
	racy      bool // the stamp may be of more than one version

	seen *read.Version // the last that counted; nil: none yet
	used *read.Version // the last handed on (nil: none); equals seen unless seen is broken, held or replaced
	pending

	state source.FileState
	since time.Time
	hold  *hold // why seen is not used although it could be; nil: it is
	handed
}

// What was looked at.
type looked struct {
	stamp     disk.Stamp // zero: none
	target    string     // of a link
	elsewhere bool       // it may be written under another name: a hard link, or mounted from there
}

// What is pending is a version of a file that does not count yet.
type pending struct {
	next *read.Version // counts from due on, unless it changes; nil: nothing new
	due  time.Time

	releases bool // next lacks something that used claims
	partial  bool // next may be half written

	changedAt     time.Time // when the file was last found changed
	changingSince time.Time // since when it has been changing, never quiet, and without what was accepted; zero: it is not
	missingSince  time.Time // since when next is gone
}

// What became of what was handed on of a file.
type handed struct {
	sent      []handedVersion // neither accepted yet nor overtaken by one that was
	good      *read.Version   // the last that was accepted; nil: none
	unlogged  bool            // that used is accepted is not logged yet
	atStart   bool            // it is of the first look: only those who debug want to know
	claimedAt time.Time       // when a version was accepted for the first time; zero: never, or not known
	damage    []source.Fault  // of the copy of the last good version
	older     *read.Version   // what is used in place of that; nil: that version

	// Of a file that refers to lists: used and good with these; nil: it refers to none.
	bound, inUse *read.Bound
	keeps        []*read.Version // of lists, what services of these have in place of those in use
}

// A probe is a look at one name.
type probe struct {
	name          string
	disk.PathInfo // of the name itself, if it is a link
	f             *state
	rules         read.Rules // that it is held to
	revision      int64      // see Source.Revalidate
	at            time.Time
	opened        time.Time // before its text was read, if that is not at
	looked
	v *read.Version // nil: it has not changed since the last look

	known    bool // it had a version that counted: a directory in its place does not remove it
	referred bool // it is of endpoints that are used: that it is gone removes none
	renamed  bool // it was renamed into its place
	doubts

	accepted *read.Version // f.good, which another goroutine sets
	resumed
}

// What may be wrong with a version that was found.
type doubts struct {
	partial      bool // it may be half written; where the probe has none, what waits
	complete     bool // but is not
	releases     bool // it lacks something that the file claims
	openForWrite bool // and it is open to write it
	certain      bool // it is of a server, and nothing of this is to be asked
}

// What is resumed of a file that was accepted before this start, at the first look.
type resumed struct {
	last   keep.Record
	good   *read.Version  // what last says; nil: there is none, or it is damaged
	damage []source.Fault // which tells why
	lost   [32]byte       // what last was before another version took its place
	pin    *pin           // what is decided of the version found, where a trial goes back
	unpin  bool           // what was decided cannot be done any more
}

// lastChanged returns when p's file was last changed, and never a time after that was found.
func (p *probe) lastChanged() time.Time {
	at := p.at
	if p.stamp == p.f.stamp && !p.f.changedAt.IsZero() {
		at = p.f.changedAt
	}
	if c := time.Unix(p.stamp.Ctime.Unix()); p.stamp != (disk.Stamp{}) && c.Before(at) {
		return c
	}
	return at
}

// isList reports whether the file is one of endpoints.
func (f *state) isList() bool { return read.IsEndpointsFile(f.name) }

// eachList calls visit with the lists that the file refers to, as it is or as it is used.
func (f *state) eachList(visit func(name string)) {
	for _, v := range []*read.Version{f.used, f.good, f.seen, f.next} {
		if v != nil && v.Original != nil {
			v = v.Original
		}
		if v == nil {
			continue
		}
		for name := range v.Lists {
			visit(name)
		}
	}
}

// status returns what is known of the file. Services in use find these faults in it besides its own.
func (f *state) status(misfits []source.Fault) source.FileStatus {
	warned := cmp.Or(f.bound, &read.Bound{}).Warned
	is := source.FileStatus{
		Path: f.path, State: f.state, Since: f.since,
		Services: f.good.Count(), Faults: slices.Concat(f.hold.faults(f.path), f.seen.Faults, warned, f.damage, misfits),
	}
	if is.State == source.Accepted && len(misfits) > 0 {
		is.State = source.Stale
	}
	return is
}

// A largeRead is a large file that is being read while others change. Its probe belongs
// to who reads it until that has ended, and has a copy of the state.
type largeRead struct {
	probe
	before disk.Stamp // of the file when it began
	cancel context.CancelFunc
	ended  bool

	// Something happened to the file that the reading may not know: it is to be looked at again,
	lookAgain bool
	hash      bool // and to be read whatever its stamp says
	renamed   bool // and was renamed into its place
}

// findsChange reports whether the file was found changed and is still being read.
func (l *largeRead) findsChange() bool { return !l.ended && l.before != l.f.stamp }

// A handedVersion is a version that was handed on.
type handedVersion struct {
	*read.Version
	bound *read.Bound // with its lists; nil: it refers to none
}

// services returns what is in use of the file.
func (f *state) services() []*source.Service {
	if f.inUse == nil && f.good != nil {
		return f.good.Services
	}
	return cmp.Or(f.inUse, &read.Bound{}).Services
}
