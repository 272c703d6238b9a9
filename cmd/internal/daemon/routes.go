package daemon

import (
	"svcproxy.dev/svcproxy/cmd/internal/control"
	"svcproxy.dev/svcproxy/cmd/internal/drain"
	"svcproxy.dev/svcproxy/cmd/internal/sources"
)

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
