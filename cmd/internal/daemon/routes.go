package daemon

import "svcproxy.dev/svcproxy/cmd/internal/control"

// routes returns what the control socket answers.
func (d *daemon) routes() *control.Routes {
	r := new(control.Routes)
	d.report.addRoutes(r)
	(&versioning{log: d.log, stateDir: d.StateDir, sources: d.sources}).addRoutes(r)
	newDraining(&draining{
		log: d.log, keeper: d.keeper, loop: d.loop, told: d.announcing.Told,
		heard: func() []string { return d.http.server.Heard(d.settings.Fixed.HTTPAddress) },
	}).addRoutes(r)
	return r
}
