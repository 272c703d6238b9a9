package file

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"syscall"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/disk"
	"svcproxy.dev/svcproxy/source/read"
)

// examine finds out which version p's file has, which is this one, as far as its text need not be
// read. The directory is on a device. It returns true when that is to be read.
func (p *probe) examine(is disk.PathInfo, dev uint64, hash bool) bool {
	switch {
	case errors.Is(p.Err, fs.ErrNotExist) && p.f.maybeLost:
		p.v = p.unreadVersion(read.ErrMaybeLost)
		return false
	case errors.Is(p.Err, fs.ErrNotExist) && p.referred:
		p.v = p.unreadVersion(p.Err)
		return false
	case errors.Is(p.Err, fs.ErrNotExist), is.Err == nil && is.Info.IsDir() && !p.known:
		p.v = read.Gone
		return false
	case is.Err == nil && is.Info.IsDir(): // the name stands, so nobody removed the file
		p.v = p.unreadVersion(disk.ErrDirectory)
		return false
	case is.Err != nil: // a link that leads nowhere too: the name stands, so nobody removed it
		p.v = p.unreadVersion(is.Err)
		return false
	}
	p.stamp = disk.StampOf(is.Info)
	p.elsewhere = is.Info.Sys().(*syscall.Stat_t).Nlink > 1 || p.stamp.Dev != dev || is.Mounted
	p.target = p.f.target
	return p.stamp != p.f.stamp || p.f.racy || hash
}

// take finds out which version a text is that was read from p's file, if that came in time.
func (p *probe) take(ctx context.Context, t disk.Text, inTime bool, parse read.Parser) {
	if !inTime {
		p.v, p.stamp = p.unreadVersion(disk.ErrNoAnswer), disk.Stamp{} // to be read again
		return
	}
	p.opened, p.stamp, p.target, p.rules = t.Opened, t.Stamp, t.Target, p.rules.OfText(t)
	if errors.Is(t.Err, fs.ErrNotExist) && !p.f.link {
		p.v, p.stamp = read.Gone, disk.Stamp{}
		return
	}
	p.v = p.version(ctx, t.Data, t.Err, parse)
}

// unreadVersion returns the version of a file whose text is not known.
func (p *probe) unreadVersion(why error) *read.Version {
	return p.version(context.Background(), nil, why, nil)
}

// version returns the version with this text, parsed only when it is new, or was
// judged by other rules.
func (p *probe) version(ctx context.Context, data []byte, err error, parse read.Parser) *read.Version {
	id := read.IDOf(data, err)
	var same *read.Version
	for _, v := range []*read.Version{p.f.seen, p.f.next, p.f.used} {
		if same == nil && v != nil && v.ID == id {
			same = v
		}
	}
	if same != nil && same.Revision.Load() == p.revision && same.Hidden == p.rules.Hidden && same.IsFrom(p.rules.From, err) && !read.MayRunPrograms(data) && !p.maySuit(same) {
		return same
	}
	var before read.KnownServices
	for _, v := range []*read.Version{p.f.used, p.f.seen, p.f.next} { // the last that has any
		if v != nil && v.Known != nil {
			before = v.Known
		}
	}
	v := read.NewVersion(ctx, p.f.path, data, err, p.rules, parse, before)
	if same != nil && same.Hidden == v.Hidden && slices.Equal(same.Faults, v.Faults) {
		same.SetOrigin(p.rules.From, err)
		v = same
	}
	v.Revision.Store(p.revision)
	return v
}

// maySuit reports whether a text that was at fault may be good by now without any change of it: a user of [[owners]] may
// have been added to this host.
func (p *probe) maySuit(v *read.Version) bool {
	return v.Broken && v.Original == nil && p.rules.Shared()
}

// restore finds the last good version of p's file. As a rule that is the one
// just read, and the copy of it is not touched.
func (s *restoring) restore(ctx context.Context, p *probe) {
	rec, ok := s.store.Find(p.name)
	if t := s.decisions.trial; t != nil && t.back {
		rec, ok = s.goneBack(ctx, p, t, rec, ok)
	} else if pin := s.decisions.pins[p.name]; pin != nil && pin.State == source.RolledBack && pin.Found == p.v.ID {
		rec, ok = s.insteadOf(ctx, p, pin, rec, ok)
	}
	if !ok || p.v == read.Gone && !s.keepsMissing() {
		return
	}
	if p.last, p.lost = rec, rec.Sum; p.good != nil {
		return
	}
	if p.v.ID == rec.Sum && !p.v.Broken { // it may be to a newer version of this program
		p.good, p.v.Data = p.v, nil
		return
	}
	data, err := s.store.Read(p.name, rec)
	if err != nil {
		p.damage = s.damage(p.name, rec.Sum, read.Reason(err))
		other, text, what := s.store.StandIn(p.name, rec)
		if what == "" {
			p.damage[0].Msg += "; no older one is kept, so none of its services are used"
			return
		}
		p.last, data = other, text
		p.damage[0].Msg += "; " + what + " is used"
	}
	switch v := read.NewVersion(ctx, p.f.path, data, nil, s.copyRules(p.name, p.IsLink()), s.parseCopy, nil); {
	case v.Broken && p.v.ID == v.ID: // the file says what is wrong with it
	case v.Broken:
		p.damage = s.damage(p.name, p.last.Sum, source.FirstError(v.Faults).Msg)
	default:
		p.good = v
		if p.damage == nil { // else it is written again
			v.Data = nil
		}
	}
}
