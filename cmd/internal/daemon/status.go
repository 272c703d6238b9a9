package daemon

import (
	"context"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/cmd/internal/announcer"
	"svcproxy.dev/svcproxy/cmd/internal/control"
	"svcproxy.dev/svcproxy/cmd/internal/hostsetup"
	"svcproxy.dev/svcproxy/cmd/internal/journal"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/conditions"
	"svcproxy.dev/svcproxy/proxier/healthz"
	"svcproxy.dev/svcproxy/proxier/traffic"
	"svcproxy.dev/svcproxy/source"
)

// A reporter tells what the daemon knows of itself, from all its parts.
type reporter struct {
	version, configDir string
	started            time.Time

	settings  *settingsWatcher
	mode      *modeSwitch
	host      *host
	affinity  *census
	takeover  *census
	foreign   *foreignChanges
	claim     *control.NamespaceClaim
	loop      *proxier.Loop
	drains    *conditions.Drains
	announcer *announcer.Announcer
	health    *healthz.Health
	server    *healthz.Server
	sources   []source.Source
	traffic   *traffic.Collector
	storage   *storage
	stderr    *journal.Queue
	control   *control.Server // nil: there is none yet
}

// connect has r ask the parts of d.
func (r *reporter) connect(d *daemon) {
	r.settings, r.mode, r.host, r.affinity, r.takeover, r.foreign = d.settings, d.mode, d.host, d.affinity, d.takeover, d.mode.foreign
	r.claim, r.loop, r.health, r.server, r.sources = d.claim, d.loop, d.health, d.server, d.sources
	r.drains, r.announcer, r.traffic, r.stderr = d.keeper.Drains(), d.announcer, d.traffic, d.Stderr
	r.storage = newStorage(&storage{dir: d.StateDir, claimed: d.state != nil, settings: d.settings, statfs: unix.Statfs, conditions: d.keeper.Problem})
}

// status returns what is known, without what is not known before ctx ends. Of services it has
// those that match accepts; nil: all.
func (r *reporter) status(ctx context.Context, match func(*source.Service) bool) control.Status {
	loop := r.loop.StatusOf(match)
	st := r.about(ctx, loop.Families, loop.Refusals)
	st.Loop, st.Announced.Addresses = loop, r.loop.Announced(match)
	return st
}

// about is status without the loop's own, of which it is given these parts.
func (r *reporter) about(ctx context.Context, families []proxier.FamilyStatus, refusals []proxier.Refusal) control.Status {
	st := control.Status{
		Version: r.version, PID: os.Getpid(), Started: r.started,
		Ready: r.health.Ready(), Healthy: r.health.Healthy(), Settings: r.inUse(families),
		Drains: drained(r.drains), Announced: control.Announced{Sessions: r.announcer.Sessions()},
	}
	for _, s := range r.sources {
		st.Sources = append(st.Sources, asUsed(s.Status(), refusals))
	}
	st.Faults, st.Restart = r.settings.pending()
	st.Warnings = r.warnings(ctx)
	return st
}

// warnings returns those of the host and of listeners.
func (r *reporter) warnings(ctx context.Context) []string {
	mode := r.mode.current().Mode
	return slices.Concat(r.mode.warnings(), r.claim.Warnings(), r.foreign.problems(), r.mode.missing(),
		hostsetup.Verify(ctx, r.settings.current(), mode), r.server.Warnings(), r.affinity.warnings(), r.takeover.warnings(),
		r.storage.warnings(), r.control.Warnings(), r.stderr.Warnings())
}

// inUse returns which settings are in use.
func (r *reporter) inUse(families []proxier.FamilyStatus) control.Settings {
	n := r.host.current()
	s := control.Settings{
		ConfigDir: r.configDir, Mode: r.mode.current().Name, NodeName: n.Name, Zone: n.Zone,
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
