package daemon

import (
	"context"
	"time"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/cmd/internal/announcer"
	"svcproxy.dev/svcproxy/cmd/internal/control"
	"svcproxy.dev/svcproxy/cmd/internal/hostsetup"
	"svcproxy.dev/svcproxy/cmd/internal/top"
	"svcproxy.dev/svcproxy/cmd/internal/trace"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/conditions"
	"svcproxy.dev/svcproxy/proxier/healthz"
	"svcproxy.dev/svcproxy/proxier/traffic"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/file"
)

// A reporter answers questions about the state of the daemon. It changes nothing.
type reporter struct {
	version, configDir string
	started            time.Time

	host      *host
	settings  *settingsWatcher
	rules     file.Rules // in the mode that is in use
	mode      *modeSwitch
	sources   []source.Source
	loop      *proxier.Loop
	keeper    *conditions.Keeper
	announcer *announcer.Announcer
	traffic   *traffic.Collector
	health    *healthz.Health
	warners   []warnFunc // in the order in which status has them
}

// A warnFunc says what is wrong, as far as it knows before ctx ends.
type warnFunc func(ctx context.Context) []string

// addRoutes adds what is asked.
func (r *reporter) addRoutes(routes *control.Routes) {
	r.addStatus(routes)
	control.Get(routes, PlanPath, r.plan)
	control.Get(routes, top.Path, r.answerTop)
	control.Get(routes, trace.Path, r.traceNames)
	r.addExplain(routes)
}

// newReporter returns what answers for a daemon that began at that time.
func (d *daemon) newReporter(started time.Time) *reporter {
	return &reporter{
		version: d.Version, configDir: d.ConfigDir, started: started,
		host: d.host, settings: d.settings, rules: rulesInUse(d.settings, d.mode), mode: d.mode, sources: d.sources, loop: d.loop,
		keeper: d.conditions.keeper, announcer: d.announcing.Announcer, traffic: d.http.traffic, health: d.http.health,
		warners: d.warners(),
	}
}

// warners returns what warns of the host, of listeners and of directories.
func (d *daemon) warners() []warnFunc {
	always := func(warnings func() []string) warnFunc {
		return func(context.Context) []string { return warnings() }
	}
	storage := newStorage(&storage{
		dir: d.StateDir, claimed: d.claims.state != nil, settings: d.settings, statfs: unix.Statfs, conditions: d.conditions.keeper.Problem,
	})
	list := []warnFunc{
		always(d.mode.warnings), always(d.claims.namespace.Warnings), always(d.mode.foreign.problems), always(d.mode.missing),
		func(ctx context.Context) []string {
			return hostsetup.Verify(ctx, d.settings.current(), d.mode.current().Mode)
		},
		always(d.http.server.Warnings), always(d.drops.warnings),
	}
	for _, f := range d.features {
		list = append(list, always(f.warnings))
	}
	socket := func() []string { return d.claims.socket.Warnings() } // it is opened later
	return append(list, always(storage.warnings), always(socket), always(d.Stderr.Warnings))
}
