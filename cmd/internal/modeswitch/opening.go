package modeswitch

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

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
		log.Warn("no progress: waiting", "family", s.Family, "work", s.Work, "for", s.For, "detail", s.Detail, "since", s.Since)
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

// begin opens the families that settings ask for and that are neither open nor being opened. ended is called
// when one is, or cannot be.
func (am *Active) begin(ctx context.Context, c modes.OpenConfig, families []policy.Family, ended func()) {
	for _, fam := range families {
		if am.Backends[fam] == nil && am.opening[fam] == nil {
			am.opening[fam] = beginOpening(ctx, am.Mode, fam, c, ended)
		}
	}
}

// await waits until no family is being opened any more, but not for long: after the end of ctx for EndPatience.
func (am *Active) await(ctx context.Context, patience time.Duration) {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	defer context.AfterFunc(ctx, func() { timer.Reset(min(patience, EndPatience)) })()
	for _, o := range am.opening {
		select {
		case <-o.done:
		case <-timer.C:
			return
		}
	}
}

// collect takes over the families that were opened, which it returns, and why others cannot be.
func (am *Active) collect() (opened map[policy.Family]modes.Backend, failed bool) {
	opened = make(map[policy.Family]modes.Backend)
	for fam, o := range am.opening {
		if !o.ended() {
			continue
		}
		delete(am.opening, fam)
		delete(am.lacks, fam)
		if o.err != nil {
			am.lacks[fam], failed = o.err, true
			continue
		}
		opened[fam] = o.backend
	}
	maps.Copy(am.Backends, opened)
	return opened, failed
}

// giveUp gives up the families that are being opened.
func (am *Active) giveUp() {
	for fam, o := range am.opening {
		am.lacks[fam] = o.stall()
		delete(am.opening, fam)
		o.abandon()
	}
}

// Missing returns which families are left out or not open yet, and why.
func (am *Active) Missing() (list []string) {
	for _, fam := range slices.Sorted(maps.Keys(am.lacks)) {
		if !am.opensLong(fam) {
			list = append(list, fmt.Sprintf("%s is left out: %v", fam, am.lacks[fam]))
		}
	}
	for _, fam := range slices.Sorted(maps.Keys(am.opening)) {
		if am.opensLong(fam) {
			list = append(list, fmt.Sprintf("%s is not in use yet: %v", fam, am.opening[fam].stall()))
		}
	}
	return list
}

// opensLong reports whether a family has been opening for so long that this is a problem.
func (am *Active) opensLong(fam policy.Family) bool {
	o := am.opening[fam]
	return o != nil && time.Since(o.began) >= openingTold
}
