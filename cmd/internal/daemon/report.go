package daemon

import (
	"context"
	"time"

	"svcproxy.dev/svcproxy/cmd/internal/announcer"
	"svcproxy.dev/svcproxy/cmd/internal/control"
	"svcproxy.dev/svcproxy/cmd/internal/drain"
	"svcproxy.dev/svcproxy/cmd/internal/modeswitch"
	"svcproxy.dev/svcproxy/cmd/internal/node"
	"svcproxy.dev/svcproxy/cmd/internal/settings"
	"svcproxy.dev/svcproxy/cmd/internal/sources"
	"svcproxy.dev/svcproxy/cmd/internal/top"
	"svcproxy.dev/svcproxy/cmd/internal/trace"
	"svcproxy.dev/svcproxy/proxier/conditions"
	"svcproxy.dev/svcproxy/proxier/healthz"
	"svcproxy.dev/svcproxy/proxier/loop"
	"svcproxy.dev/svcproxy/proxier/traffic"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/read"
)

// A reporter answers questions about the state of the daemon. It changes nothing.
type reporter struct {
	version, configDir string
	started            time.Time

	host      *node.Host
	settings  *settings.Watcher
	rules     read.Rules // in the mode that is in use
	mode      *modeswitch.Switch
	sources   []source.Source
	loop      *loop.Loop
	keeper    *conditions.Keeper
	announcer *announcer.Announcer
	traffic   *traffic.Collector
	health    *healthz.Health
	warners   []warnFunc // in the order in which status has them
}

// A warnFunc says what is wrong, as far as it knows before ctx ends.
type warnFunc func(ctx context.Context) []string

// AddRoutes adds what is asked.
func (r *reporter) addRoutes(routes *control.Routes) {
	r.addStatus(routes)
	control.Get(routes, PlanPath, r.plan)
	control.Get(routes, top.Path, r.answerTop)
	control.Get(routes, trace.Path, r.traceNames)
	r.addExplain(routes)
}

// routes returns what the control socket answers.
func (d *daemon) routes() *control.Routes {
	r := new(control.Routes)
	d.report.addRoutes(r)
	(&sources.Versioning{Log: d.log, StateDir: d.StateDir, Sources: d.sources}).AddRoutes(r)
	drain.New(drain.Config{
		Log: d.log, Keeper: d.keeper, Loop: d.loop, Told: d.announcing.Told, Open: connections{}.Open,
		Heard: func() []string { return d.http.server.Heard(d.settings.Fixed.HTTPAddress) },
	}).AddRoutes(r)
	return r
}
