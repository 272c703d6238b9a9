package conditions

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"svcproxy.dev/svcproxy/proxier/healthcheck"
	"svcproxy.dev/svcproxy/source"
)

// A question of two services is one, changes of a check begin with what was known, and
// nothing is asked that nobody wants to know.
func TestQuestions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := run(t, t.TempDir())
		a, b := build("a", []string{one, two}, probed), build("b", []string{one, two + " disabled"}, probed)
		h.Use(a.Key, a)
		h.Use(b.Key, b)
		h.Use(a.Key, build("a", []string{one, two}, probed)) // as it was
		if len(h.checker.users) != 2 {
			t.Errorf("%d questions, want 2", len(h.checker.users))
		}
		h.set(a, healthcheck.Down, one)
		h.set(a, healthcheck.Up, two)
		if got := fmt.Sprint(h.told()); got != "[[default/a default/b]]" {
			t.Errorf("reconsidered %s", got)
		}
		h.want(a, "1 down, 2 up")
		h.want(b, "1 down, 2")

		faster := build("a", []string{one, two}, probed, func(s *source.Service) { s.HealthCheck.Interval = time.Millisecond })
		h.Use(a.Key, faster)
		h.want(a, "1 down, 2 up")
		if len(h.checker.users) != 3 { // two of a, one of b
			t.Errorf("%d questions after a change of a check, want 3", len(h.checker.users))
		}
		h.set(faster, healthcheck.Up, one)
		h.told()
		h.want(a, "1 up, 2 up")
		h.want(b, "1 down, 2")

		h.Use(a.Key, build("a", []string{one, two}, probed, func(s *source.Service) { s.Disabled = true }))
		h.Use(b.Key, build("b", []string{one}))
		if h.known(b) != "1, 2" || len(h.checker.users) != 0 {
			t.Errorf("%s; %d questions of services that ask none", h.known(b), len(h.checker.users))
		}
		h.Use(a.Key, faster)
		h.want(a, "1 up, 2 up")
		h.Use(a.Key, nil)
		h.Use(b.Key, nil)
		if h.Conditions(a.Key) != nil || h.Details(a.Key) != nil || len(h.checker.users) != 0 || len(h.askers) != 0 {
			t.Errorf("%d questions are left, %d askers", len(h.checker.users), len(h.askers))
		}
	})
}

// What is known of an endpoint that is gone counts when it is back soon.
func TestEndpointsThatComeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := run(t, t.TempDir())
		both := build("a", []string{one, two}, probed)
		h.Use(both.Key, both)
		h.set(both, healthcheck.Down, one)
		h.set(both, healthcheck.Up, two)
		h.told()
		h.Use(both.Key, build("a", []string{two}, probed))
		time.Sleep(keepFormer)
		h.Use(both.Key, both)
		h.want(both, "1 down, 2 up")
		h.Use(both.Key, nil)
		time.Sleep(keepFormer + time.Second)
		h.Use(both.Key, both)
		h.want(both, "1, 2")
	})
}

// A result that changes while a file is written again is news all the same, and one that cannot
// be asked for again is told with its reason.
func TestChangeMeetsARewrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := run(t, t.TempDir())
		svc := build("a", []string{one, two}, probed)
		h.Use(svc.Key, svc)
		h.set(svc, healthcheck.Up, one, two)
		h.told()
		h.set(svc, healthcheck.Down, one)
		h.Use(svc.Key, build("a", []string{one, two, three}, probed))
		h.told()
		if n := strings.Count(h.log.String(), "endpoint down"); n != 1 {
			t.Errorf("the log says %d times that it is down:\n%s", n, h.log)
		}
		q := healthcheck.Ask(svc, &svc.Endpoints[1])
		h.checker.mu.Lock()
		h.checker.results[q] = healthcheck.Result{State: healthcheck.Up, NotAsked: "not asked: too many open files"}
		h.checker.mu.Unlock()
		if d := h.Details(svc.Key)[q.At]; d.Error != "not asked: too many open files" {
			t.Errorf("detail %+v", d)
		}
	})
}

// Endpoints that were in use stay so when their service gets a check, until that says otherwise;
// new ones wait for it.
func TestCheckOfARunningService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := run(t, t.TempDir())
		plain := build("a", []string{one, two})
		h.Use(plain.Key, plain)
		svc := build("a", []string{one, two, three}, probed)
		h.Use(svc.Key, svc)
		h.want(svc, "1 up, 2 up, 3")
		svc = build("a", []string{one, two, three}, probed)
		h.Use(svc.Key, svc)
		h.want(svc, "1 up, 2 up, 3")
		h.set(svc, healthcheck.Down, two)
		h.told()
		h.want(svc, "1 up, 2 down, 3")
		h.stop()
		if n := strings.Count(h.log.String(), "endpoint up"); n != 0 {
			t.Errorf("the log says of %d that they are up:\n%s", n, h.log)
		}
	})
}
