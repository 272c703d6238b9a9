package daemon

import (
	"svcproxy.dev/svcproxy/cmd/internal/control"
	"svcproxy.dev/svcproxy/cmd/internal/top"
	"svcproxy.dev/svcproxy/cmd/internal/trace"
)

// routes returns what the control socket answers.
func (d *daemon) routes() *control.Routes {
	r := new(control.Routes)
	d.addStatus(r)
	control.Get(r, PlanPath, d.plan)
	control.Get(r, top.Path, d.answerTop)
	control.Get(r, trace.Path, d.traceNames)
	d.versionRoutes(r)
	d.addExplain(r)
	newDraining(&draining{
		log: d.log, keeper: d.keeper, loop: d.loop, told: d.announcer.Told,
		heard: func() []string { return d.server.Heard(d.fixed.HTTPAddress) },
	}).addRoutes(r)
	return r
}
