package daemon

import (
	"time"

	"svcproxy.dev/svcproxy/proxier/conditions"
	"svcproxy.dev/svcproxy/proxier/healthcheck"
	"svcproxy.dev/svcproxy/proxier/healthz"
)

// answersOf returns how long checks took, for metrics.
func answersOf(c *healthcheck.Checker) func() []healthz.CheckAnswers {
	return func() (list []healthz.CheckAnswers) {
		for _, a := range c.Answers() {
			list = append(list, healthz.CheckAnswers(a))
		}
		return list
	}
}

// countDrains counts drains, by what they drain, and says when the oldest of them began.
func countDrains(d *conditions.Drains) (n map[string]int, oldest map[string]time.Time) {
	n, oldest = make(map[string]int), make(map[string]time.Time)
	for _, one := range d.List() {
		kind := healthz.DrainedEndpoints
		if one.Target.Node {
			kind = healthz.DrainedNode
		}
		n[kind]++
		if was, ok := oldest[kind]; !ok || one.At.Before(was) {
			oldest[kind] = one.At
		}
	}
	return n, oldest
}
