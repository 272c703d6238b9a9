package modeswitch

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/cmd/internal/modes"
	"svcproxy.dev/svcproxy/internal/awaited"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/report"
)

// EndPatience is how long a program, or a disk, that does not answer can keep svcproxy from ending,
// half of what all of that may take.
const EndPatience = 500 * time.Millisecond

// OpenPatience is how long the start, and a change of mode, wait for families to open. Those that take longer
// join later: a program or the kernel may hang.
var OpenPatience = 700 * time.Millisecond

// DecidePatience is how long auto waits for a family before it tries the next mode. Loading modules and probing
// took 15 s on an emulated machine at its boot, and a late start is better than another mode than yesterday's.
var DecidePatience = time.Minute

// openingTold is how long a family may take to open before that is a problem.
const openingTold = 2 * time.Second

// An opening opens the backend of one family.
type opening struct {
	fam    policy.Family
	mode   string
	began  time.Time
	waits  *awaited.Record
	cancel func()

	done    chan struct{} // closed when what follows is set
	backend modes.Backend
	err     error
}

// beginOpening opens a family beside everything else, and calls ended.
func beginOpening(ctx context.Context, m modes.Mode, fam policy.Family, c modes.OpenConfig, ended func()) *opening {
	ctx, cancel := context.WithCancel(ctx)
	ctx, waits := awaited.Watch(ctx)
	o := &opening{fam: fam, mode: m.Name, began: time.Now(), waits: waits, cancel: cancel, done: make(chan struct{})}
	warn := time.AfterFunc(openingTold, func() { o.warn(c.Log) })
	go func() {
		o.backend, o.err = openFamily(ctx, m, fam, c)
		warn.Stop()
		close(o.done)
		ended()
	}()
	return o
}

// ended reports whether the family is open, or cannot be opened.
func (o *opening) ended() bool {
	select {
	case <-o.done:
		return true
	default:
		return false
	}
}

// warn logs that the opening takes long.
func (o *opening) warn(log *slog.Logger) {
	if s := o.stall(); log != nil {
		log.Warn("no progress; waiting", "family", s.Family, "work", s.Work, "for", s.For, "detail", s.Detail, "since", s.Since)
	}
}

// abandon gives up a family, and waits for nothing.
func (o *opening) abandon() {
	o.cancel()
	go func() {
		if <-o.done; o.backend != nil {
			_ = o.backend.Close() // nobody has used it
		}
	}()
}

// stall returns what the opening waits for.
func (o *opening) stall() report.Stall {
	w := o.waits.Latest()
	return report.Stall{Family: o.fam, Work: "start of " + o.mode + " mode", For: cmp.Or(w.For, "the kernel"), Detail: w.Detail, Since: o.began}
}

func openFamily(ctx context.Context, m modes.Mode, fam policy.Family, c modes.OpenConfig) (modes.Backend, error) {
	if err := supported(fam); err != nil {
		return nil, err
	}
	return m.Open(ctx, fam, c)
}

// supported tries whether the kernel has a family: IPv6 may be left out of it, or be disabled at boot.
func supported(fam policy.Family) error {
	domain := unix.AF_INET
	if fam == policy.IPv6 {
		domain = unix.AF_INET6
	}
	fd, err := unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("this kernel does not have it: %w", err)
	}
	return unix.Close(fd)
}
