package daemon

import (
	"svcproxy.dev/svcproxy/cmd/internal/control"
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

// drained returns what is drained, for status.
func drained(d *conditions.Drains) (list []control.Drained) {
	for _, one := range d.List() {
		list = append(list, control.Drained{Target: one.Target.String(), Drain: one.Drain})
	}
	return list
}

// countDrains counts drains, by what they drain.
func countDrains(d *conditions.Drains) map[string]int {
	n := make(map[string]int)
	for _, one := range d.List() {
		if one.Target.Node {
			n[healthz.DrainedNode]++
		} else {
			n[healthz.DrainedEndpoints]++
		}
	}
	return n
}
