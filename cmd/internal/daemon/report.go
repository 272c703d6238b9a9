package daemon

import (
	"context"
	"time"

	"svcproxy.dev/svcproxy/cmd/internal/announcer"
	"svcproxy.dev/svcproxy/cmd/internal/control"
	"svcproxy.dev/svcproxy/cmd/internal/top"
	"svcproxy.dev/svcproxy/cmd/internal/trace"
	"svcproxy.dev/svcproxy/proxier/conditions"
	"svcproxy.dev/svcproxy/proxier/healthz"
	"svcproxy.dev/svcproxy/proxier/loop"
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
	loop      *loop.Loop
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
