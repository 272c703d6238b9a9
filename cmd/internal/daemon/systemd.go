package daemon

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// tellSystemd tells systemd when services are in the kernel, that the loop is alive, and when the daemon stops.
func (d *daemon) tellSystemd(ctx context.Context, line *statusLine) {
	defer d.Notify("STOPPING=1")
	ready := d.loop.Ready()
	counted := time.NewTicker(statusInterval)
	defer counted.Stop()
	var alive <-chan time.Time
	if d.Watch > 0 {
		tick := time.NewTicker(d.Watch / 3)
		defer tick.Stop()
		alive = tick.C
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-ready:
			ready = nil // once
			d.Notify("READY=1")
		case <-counted.C:
			if ready == nil {
				line.setCounts(text(d.recentCounts()))
			}
		case <-alive:
			if time.Since(d.loop.RunAlive()) < d.Watch {
				d.Notify("WATCHDOG=1")
			}
		}
	}
}

// statusInterval is how often the counts that systemctl status shows may change.
var statusInterval = 10 * time.Second

// A statusLine is what systemctl status shows: the mode, and later how many services and
// problems there are.
type statusLine struct {
	notify func(state string)

	mu           sync.Mutex // held while systemd is told, so that the last line stays
	mode, counts string
	told         string
}

func (l *statusLine) setMode(text string)   { l.set(&l.mode, text) }
func (l *statusLine) setCounts(text string) { l.set(&l.counts, text) }

// set changes a part of the line, which is told if that makes it another one.
func (l *statusLine) set(part *string, text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	*part = text
	line := l.mode
	if l.counts != "" {
		line += "; " + l.counts
	}
	if line != l.told {
		l.told = line
		l.notify("STATUS=" + line)
	}
}

// reloading is what systemd wants to hear before READY=1 says that a reload is
// done, with the time in µs since boot, sd_notify(3).
func reloading() string {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return "RELOADING=1"
	}
	return fmt.Sprintf("RELOADING=1\nMONOTONIC_USEC=%d", ts.Nano()/1000)
}
