package daemon

import (
	"svcproxy.dev/svcproxy/proxier/conditions"
	"svcproxy.dev/svcproxy/proxier/healthcheck"
	"svcproxy.dev/svcproxy/source"
)

// connectConditions makes the parts that know what files do not say of endpoints. They outlive
// changes of settings and of the mode.
func (d *daemon) connectConditions() {
	d.checker = healthcheck.NewChecker(healthcheck.Config{
		Log:    d.log,
		Report: func(q healthcheck.Question, r healthcheck.Result) { d.keeper.Report(q, r) },
	})
	d.keeper = conditions.New(conditions.Config{
		StateDir: d.StateDir, Log: d.log, Checker: d.checker,
		Reconsider: func(keys ...source.Key) { d.loop.Reconsider(keys...) },
	})
}
