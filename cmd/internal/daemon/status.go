package daemon

import (
	"context"
	"os"
	"slices"

	"svcproxy.dev/svcproxy/cmd/internal/control"
	"svcproxy.dev/svcproxy/cmd/internal/hostsetup"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/source"
)

// status returns what the daemon knows of itself, without what is not known before ctx ends. Of services it has
// those that match accepts; nil: all.
func (d *daemon) status(ctx context.Context, match func(*source.Service) bool) control.Status {
	loop := d.loop.StatusOf(match)
	st := d.about(ctx, loop.Families, loop.Refusals)
	st.Loop, st.Announced.Addresses = loop, d.loop.Announced(match)
	return st
}

// about is status without the loop's own, of which it is given these parts.
func (d *daemon) about(ctx context.Context, families []proxier.FamilyStatus, refusals []proxier.Refusal) control.Status {
	st := control.Status{
		Version: d.Version, PID: os.Getpid(), Started: d.started,
		Ready: d.health.Ready(), Healthy: d.health.Healthy(), Settings: d.inUse(families),
		Drains: d.keeper.Drains().List(), Announced: control.Announced{Sessions: d.announcer.Sessions()},
	}
	for _, s := range d.sources {
		st.Sources = append(st.Sources, asUsed(s.Status(), refusals))
	}
	st.Faults, st.Restart = d.settings.pending()
	st.Warnings = d.warnings(ctx)
	return st
}

// warnings returns those of the host and of listeners.
func (d *daemon) warnings(ctx context.Context) []string {
	mode := d.mode.current().Mode
	return slices.Concat(d.mode.warnings(), d.claim.Warnings(), d.mode.foreign.problems(), d.mode.missing(),
		hostsetup.Verify(ctx, d.settings.current(), mode), d.server.Warnings(), d.affinity.warnings(), d.takeover.warnings(),
		d.storage.warnings(), d.control.Warnings(), d.Stderr.Warnings())
}

// inUse returns which settings are in use.
func (d *daemon) inUse(families []proxier.FamilyStatus) control.Settings {
	n := d.host.current()
	s := control.Settings{
		ConfigDir: d.ConfigDir, Mode: d.mode.current().Name, NodeName: n.Name, Zone: n.Zone,
		Families: []string{}, NodePortAddresses: []string{},
	}
	for _, a := range n.NodePortAddrs {
		s.NodePortAddresses = append(s.NodePortAddresses, a.String())
	}
	for _, f := range families {
		s.Families = append(s.Families, f.Family)
	}
	return s
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
