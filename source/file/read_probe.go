package file

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"
)

// racyTime is how much older than its reading a file's last change must be for
// its stamp to be trusted: the kernel's clock for files may go in ticks (10 ms
// at HZ=100), and two writes in one tick give the same stamp.
const racyTime = 50 * time.Millisecond

// coarseTick is what stamps of whole seconds may count in: vfat has steps of 2 s.
const coarseTick = 2 * time.Second

// racyWindow returns for how long a stamp with these nanoseconds may be of more than one version.
func racyWindow(nsec int64) time.Duration {
	if nsec == 0 {
		return coarseTick + racyTime
	}
	return racyTime
}

// examine finds out which version p's file has, as far as its text need not be read.
// It returns true when that is to be read.
func (p *probe) examine(hash bool) bool {
	info, err := p.info, p.err
	if p.f.link {
		info, err = os.Stat(p.f.path)
	}
	switch {
	case errors.Is(p.err, fs.ErrNotExist) && p.f.maybeLost:
		p.v = p.unreadVersion(errMaybeLost)
		return false
	case errors.Is(p.err, fs.ErrNotExist) && p.referred:
		p.v = p.unreadVersion(p.err)
		return false
	case errors.Is(p.err, fs.ErrNotExist), err == nil && info.IsDir():
		p.v = gone
		return false
	case err != nil: // a link that leads nowhere too: the name stands, so nobody removed it
		p.v = p.unreadVersion(err)
		return false
	}
	p.stamp = stampOf(info)
	p.elsewhere = info.Sys().(*syscall.Stat_t).Nlink > 1 || p.stamp.dev != p.home.dev || isMounted(p.f.path)
	p.target = p.f.target
	return p.stamp != p.f.stamp || p.f.racy || hash
}

// readText reads the text of p's file.
func (p *probe) readText(ctx context.Context, parse parser) {
	if p.f.link {
		p.target, _ = filepath.EvalSymlinks(p.f.path)
	}
	var data []byte
	var err error
	p.opened = time.Now()
	data, p.stamp, err = readContent(p.f.path, p.max)
	if errors.Is(err, fs.ErrNotExist) && !p.f.link {
		p.v, p.stamp = gone, stamp{}
		return
	}
	p.v = p.version(ctx, data, err, parse)
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
	if same != nil && same.revision.Load() == p.revision {
		return same
	}
	var before knownServices
	for _, v := range []*version{p.f.used, p.f.seen, p.f.next} { // the last that has any
		if v != nil && v.known != nil {
			before = v.known
		}
	}
	v := newVersion(ctx, p.f.path, data, err, parse, before)
	if err == nil {
		v.uid = int(p.stamp.uid)
	}
	if same != nil && slices.Equal(same.faults, v.faults) {
		v = same
	}
	v.revision.Store(p.revision)
	return v
}
