package file

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"syscall"

	"svcproxy.dev/svcproxy/source/disk"
	"svcproxy.dev/svcproxy/source/read"
)

// examine finds out which version p's file has, which is this one, as far as its text need not be
// read. It returns true when that is to be read.
func (p *probe) examine(is disk.PathInfo, hash bool) bool {
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
	p.elsewhere = is.Info.Sys().(*syscall.Stat_t).Nlink > 1 || p.stamp.Dev != p.dir.Dev || is.Mounted
	p.target = p.f.target
	return p.stamp != p.f.stamp || p.f.racy || hash
}

// take finds out which version a text is that was read from p's file.
func (p *probe) take(ctx context.Context, t disk.Text, parse read.Parser) {
	p.opened, p.stamp, p.target, p.rules.Hidden = t.Opened, t.Stamp, t.Target, t.Hidden
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
	if same != nil && same.Revision.Load() == p.revision && same.Hidden == p.rules.Hidden && !read.MayRunPrograms(data) {
		return same
	}
	var before read.KnownServices
	for _, v := range []*read.Version{p.f.used, p.f.seen, p.f.next} { // the last that has any
		if v != nil && v.Known != nil {
			before = v.Known
		}
	}
	v := read.NewVersion(ctx, p.f.path, data, err, p.rules, parse, before)
	if err == nil {
		v.UID = int(p.stamp.Uid)
	}
	if same != nil && same.Hidden == v.Hidden && slices.Equal(same.Faults, v.Faults) {
		v = same
	}
	v.Revision.Store(p.revision)
	return v
}
