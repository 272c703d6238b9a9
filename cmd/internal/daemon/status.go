package daemon

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"svcproxy/cmd/internal/control"
	"svcproxy/cmd/internal/hostsetup"
	"svcproxy/proxier"
	"svcproxy/source"
)

// status returns what the daemon tells of itself, without what is not known before ctx ends.
func (d *daemon) status(ctx context.Context) control.Status {
	d.mu.Lock()
	st := control.Status{
		Version: d.Version, PID: os.Getpid(), Started: d.started,
		Settings: control.Settings{
			ConfigDir: d.ConfigDir, Mode: d.kernel.Name, NodeName: d.node.Name, Zone: d.node.Zone,
			Families: []string{}, NodePortAddresses: []string{},
		},
		Faults: d.faults, Restart: d.restart,
	}
	for _, a := range d.node.NodePortAddrs {
		st.Settings.NodePortAddresses = append(st.Settings.NodePortAddresses, a.String())
	}
	settings, lists, kernel, missing := d.settings, d.lists.total, d.kernel, d.kernel.missing
	st.Warnings = slices.Concat(d.modeWarnings(), d.left)
	d.mu.Unlock()

	st.Ready, st.Healthy = d.health.Ready(), d.health.Healthy()
	st.Loop = d.loop.Status()
	for _, s := range d.sources() {
		st.Sources = append(st.Sources, asUsed(s.Status(), st.Loop.Refusals))
	}
	for _, f := range st.Loop.Families {
		st.Settings.Families = append(st.Settings.Families, f.Family)
	}
	st.Warnings = slices.Concat(st.Warnings, d.claim.Warnings(), d.contended(), missing, hostsetup.Verify(ctx, settings, kernel.Mode), d.server.Warnings(),
		hostsetup.VerifyAffinity(kernel.Mode, lists))
	return st
}

// modeWarnings says why the mode in use is not the one that settings ask for, and what
// it does not do of what they ask for. d.mu is held.
func (d *daemon) modeWarnings() (list []string) {
	if d.modeErr != nil {
		list = append(list, fmt.Sprintf("mode %q is not in use: %v", d.settings.Mode, d.modeErr))
	}
	used := d.settings
	used.Mode = d.kernel.Name
	if err := used.Check(); err != nil {
		list = append(list, err.Error())
	}
	return list
}

// asUsed lays over what a source knows of its files what became of their claims.
func asUsed(st source.Status, refusals []proxier.Refusal) source.Status {
	refused := make(map[source.UnitID]proxier.Refusal, len(refusals))
	for _, r := range refusals {
		refused[r.Unit] = r
	}
	st.Objects = withRefusals(st, refusals)
	for i := range st.Files {
		f := &st.Files[i]
		r, ok := refused[source.UnitID{Source: st.Source, Name: f.Path}]
		if !ok || f.State == source.Refused {
			continue
		}
		f.Faults = slices.Concat(f.Faults, r.Faults)
		switch {
		case !r.Stale: // not even what was last accepted can be used
			f.State, f.Since, f.Services = source.Refused, r.Since, 0
		case f.State == source.Accepted:
			f.State, f.Since = source.Stale, r.Since
		}
	}
	return st
}

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
