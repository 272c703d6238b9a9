package file

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"syscall"

	"svcproxy.dev/svcproxy/source/disk"
)

// examine finds out which version p's file has, which is this one, as far as its text need not be
// read. It returns true when that is to be read.
func (p *probe) examine(is disk.PathInfo, hash bool) bool {
	switch {
	case errors.Is(p.Err, fs.ErrNotExist) && p.f.maybeLost:
		p.v = p.unreadVersion(errMaybeLost)
		return false
	case errors.Is(p.Err, fs.ErrNotExist) && p.referred:
		p.v = p.unreadVersion(p.Err)
		return false
	case errors.Is(p.Err, fs.ErrNotExist), is.Err == nil && is.Info.IsDir() && !p.known:
		p.v = gone
		return false
	case is.Err == nil && is.Info.IsDir(): // the name stands, so nobody removed the file
		p.v = p.unreadVersion(disk.ErrDirectory)
		return false
	case is.Err != nil: // a link that leads nowhere too: the name stands, so nobody removed it
		p.v = p.unreadVersion(is.Err)
		return false
	}
	p.stamp = disk.StampOf(is.Info)
	p.elsewhere = is.Info.Sys().(*syscall.Stat_t).Nlink > 1 || p.stamp.Dev != p.dir.Dev || is.Mounted
	p.target = p.f.target
	return p.stamp != p.f.stamp || p.f.racy || hash
}

// take finds out which version a text is that was read from p's file.
func (p *probe) take(ctx context.Context, t disk.Text, parse parser) {
	p.opened, p.stamp, p.target, p.rules.hidden = t.Opened, t.Stamp, t.Target, t.Hidden
	if errors.Is(t.Err, fs.ErrNotExist) && !p.f.link {
		p.v, p.stamp = gone, disk.Stamp{}
		return
	}
	p.v = p.version(ctx, t.Data, t.Err, parse)
}

// unreadVersion returns the version of a file whose text is not known.
func (p *probe) unreadVersion(why error) *version {
	return p.version(context.Background(), nil, why, nil)
}

// version returns the version with this text, parsed only when it is new, or was
// judged by other rules.
func (p *probe) version(ctx context.Context, data []byte, err error, parse parser) *version {
	id := idOf(data, err)
	var same *version
	for _, v := range []*version{p.f.seen, p.f.next, p.f.used} {
		if same == nil && v != nil && v.id == id {
			same = v
		}
	}
	if same != nil && same.revision.Load() == p.revision && same.hidden == p.rules.hidden && !mayRunPrograms(data) {
		return same
	}
	var before knownServices
	for _, v := range []*version{p.f.used, p.f.seen, p.f.next} { // the last that has any
		if v != nil && v.known != nil {
			before = v.known
		}
	}
	v := newVersion(ctx, p.f.path, data, err, p.rules, parse, before)
	if err == nil {
		v.uid = int(p.stamp.Uid)
	}
	if same != nil && same.hidden == v.hidden && slices.Equal(same.faults, v.faults) {
		v = same
	}
	v.revision.Store(p.revision)
	return v
}
