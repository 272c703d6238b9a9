package daemon

import (
	"svcproxy.dev/svcproxy/cmd/internal/control"
)

// routes returns what the control socket answers.
func (d *daemon) routes() *control.Routes {
	r := new(control.Routes)
	d.report.addRoutes(r)
	control.Get(r, PlanPath, d.plan)
	d.versionRoutes(r)
	return r
}
