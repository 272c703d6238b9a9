package daemon

import (
	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/proxier/conditions"
	"svcproxy.dev/svcproxy/proxier/healthcheck"
	"svcproxy.dev/svcproxy/source"
)

// endpointConditions knows what files do not say of endpoints.
type endpointConditions struct {
	checker *healthcheck.Checker
	keeper  *conditions.Keeper
}

// connectConditions makes the parts that know what files do not say of endpoints. They outlive
// changes of settings and of the mode.
func (d *daemon) connectConditions() {
	c := new(endpointConditions)
	c.checker = healthcheck.NewChecker(healthcheck.Config{
		Log:    d.log,
		Report: func(q healthcheck.Question, r healthcheck.Result) { c.keeper.Report(q, r) },

		Parallel: parallelProbes(),
		ExecUser: d.settings.fixed.Health.ExecUser,
	})
	c.keeper = conditions.New(conditions.Config{
		StateDir: d.StateDir, Log: d.log, Checker: c.checker,
		Reconsider: func(keys ...source.Key) { d.loop.Reconsider(keys...) },
		OnNode:     func(drained bool) { d.loop.DrainHost(drained) },
	})
	d.conditions = c
}

// parallelProbes returns how many endpoints are asked at once at most: a quarter of the
// descriptors that this process may have, where that is less than the usual number (0).
func parallelProbes() int {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil || l.Cur/4 >= healthcheck.Parallel {
		return 0
	}
	return max(1, int(l.Cur/4))
}
