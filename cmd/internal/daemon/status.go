package daemon

import (
	"context"
	"os"

	"svcproxy.dev/svcproxy/cmd/internal/control"
	"svcproxy.dev/svcproxy/cmd/internal/sources"
	"svcproxy.dev/svcproxy/proxier/claims"
	"svcproxy.dev/svcproxy/proxier/report"
	"svcproxy.dev/svcproxy/source"
)

// status returns what the daemon knows of itself, without what is not known before ctx ends. Of services it has
// those that match accepts; nil: all.
func (r *reporter) status(ctx context.Context, match func(*source.Service) bool) control.Status {
	s := r.loop.Snapshot()
	services := report.StatusOf(s, match)
	st := r.about(ctx, services.Families, services.Refusals)
	st.Loop, st.Announced.Addresses = services, report.Announced(s, match)
	return st
}

// about is status without the loop's own, of which it is given these parts.
func (r *reporter) about(ctx context.Context, families []report.FamilyStatus, refusals []claims.Refusal) control.Status {
	st := control.Status{
		Version: r.version, PID: os.Getpid(), Started: r.started,
		Ready: r.health.Ready(), Healthy: r.health.Healthy(), Settings: r.inUse(families),
		Drains: r.keeper.Drains().List(), Announced: control.Announced{Sessions: r.announcer.Sessions()},
	}
	for _, s := range r.sources {
		st.Sources = append(st.Sources, sources.AsUsed(s.Status(), refusals))
	}
	st.Faults, st.Restart = r.settings.Pending()
	st.Warnings = r.warnings(ctx)
	return st
}

// warnings returns those of the host, of listeners and of directories.
func (r *reporter) warnings(ctx context.Context) (list []string) {
	for _, w := range r.warners {
		list = append(list, w(ctx)...)
	}
	return list
}

// inUse returns which settings are in use.
func (r *reporter) inUse(families []report.FamilyStatus) control.Settings {
	n := r.host.Current()
	s := control.Settings{
		ConfigDir: r.configDir, Mode: r.mode.Current().Name, NodeName: n.Name, Zone: n.Zone,
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
