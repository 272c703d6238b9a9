package daemon

import (
	"context"
	"net/url"

	"svcproxy.dev/svcproxy/cmd/internal/control"
)

// routes returns what the control socket answers.
func (d *daemon) routes() *control.Routes {
	r := new(control.Routes)
	control.Get(r, "/v1/status", func(ctx context.Context, _ url.Values) (control.Status, error) {
		return d.report.status(ctx), nil
	})
	control.Get(r, PlanPath, d.plan)
	return r
}
