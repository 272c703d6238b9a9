package daemon

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// tellSystemd says when services are in the kernel, that the loop is alive, and that it is the end.
func (d *daemon) tellSystemd(ctx context.Context) {
	defer d.Notify("STOPPING=1")
	ready := d.loop.Ready()
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
		case <-alive:
			if time.Since(d.loop.Alive()) < d.Watch {
				d.Notify("WATCHDOG=1")
			}
		}
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
