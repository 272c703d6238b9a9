package conditions

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/proxier/healthcheck"
	"svcproxy.dev/svcproxy/source"
)

// A question of two services is one, changes of a check begin with what was known, and
// nothing is asked that nobody wants to know.
func TestServicesShareQuestions(t *testing.T) {
	inBubble(t, func(t *testing.T, h *host) {
		a, b := build("a", []string{one, two}, probed), build("b", []string{one, two + " disabled"}, probed)
		h.Use(a.Key, a)
		h.Use(b.Key, b)
		h.Use(a.Key, build("a", []string{one, two}, probed)) // as it was
		if len(h.checker.users) != 2 {
			t.Errorf("%d questions, want 2", len(h.checker.users))
		}
		h.set(a, source.CheckFailed, one)
		h.set(a, source.CheckPassed, two)
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
		h.set(faster, source.CheckPassed, one)
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
		if h.Conditions(a.Key) != nil || h.Details(a.Key) != nil || len(h.checker.users) != 0 || len(h.book.askers) != 0 {
			t.Errorf("%d questions are left, %d askers", len(h.checker.users), len(h.book.askers))
		}
	})
}

// What is known of an endpoint that is gone counts when it is back soon.
func TestEndpointsThatComeBack(t *testing.T) {
	inBubble(t, func(t *testing.T, h *host) {
		both := build("a", []string{one, two}, probed)
		h.Use(both.Key, both)
		h.set(both, source.CheckFailed, one)
		h.set(both, source.CheckPassed, two)
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
	inBubble(t, func(t *testing.T, h *host) {
		svc := build("a", []string{one, two}, probed)
		h.Use(svc.Key, svc)
		h.set(svc, source.CheckPassed, one, two)
		h.told()
		h.set(svc, source.CheckFailed, one)
		h.Use(svc.Key, build("a", []string{one, two, three}, probed))
		h.told()
		if n := strings.Count(h.log.String(), "endpoint down"); n != 1 {
			t.Errorf("the log says %d times that it is down:\n%s", n, h.log)
		}
		q := healthcheck.Ask(svc, &svc.Endpoints[1])
		h.checker.mu.Lock()
		h.checker.results[q] = healthcheck.Result{State: source.CheckPassed, NotAsked: "not asked: too many open files"}
		h.checker.mu.Unlock()
		if d := h.Details(svc.Key)[q.At]; d.Error != "not asked: too many open files" {
			t.Errorf("detail %+v", d)
		}
	})
}

// Endpoints that were in use stay so when their service gets a check, until that says otherwise;
// new ones wait for it.
func TestCheckOfARunningService(t *testing.T) {
	inBubble(t, func(t *testing.T, h *host) {
		plain := build("a", []string{one, two})
		h.Use(plain.Key, plain)
		svc := build("a", []string{one, two, three}, probed)
		h.Use(svc.Key, svc)
		h.want(svc, "1 up, 2 up, 3")
		svc = build("a", []string{one, two, three}, probed)
		h.Use(svc.Key, svc)
		h.want(svc, "1 up, 2 up, 3")
		h.set(svc, source.CheckFailed, two)
		h.told()
		h.want(svc, "1 up, 2 down, 3")
		h.stop()
		if n := strings.Count(h.log.String(), "endpoint up"); n != 0 {
			t.Errorf("the log says of %d that they are up:\n%s", n, h.log)
		}
	})
}

// Answers in a row to one check are no row for another one.
func TestRowsEndWithTheirCheck(t *testing.T) {
	inBubble(t, func(t *testing.T, h *host) {
		svc := build("a", []string{one}, probed)
		h.Use(svc.Key, svc)
		q := healthcheck.Ask(svc, &svc.Endpoints[0])
		h.checker.mu.Lock()
		h.checker.results[q] = healthcheck.Result{State: source.CheckPassed, Row: 2, Error: "refused"}
		h.checker.mu.Unlock()
		stricter := build("a", []string{one}, probed, func(s *source.Service) { s.HealthCheck.Path = "/x" })
		h.Use(svc.Key, stricter)
		q = healthcheck.Ask(stricter, &stricter.Endpoints[0])
		if r := h.checker.Result(q); r.State != source.CheckPassed || r.Row != 0 {
			t.Errorf("asked from %+v on, want a row of 0", r)
		}
	})
}

// Only what was in use is in use until the first result of a new check.
func TestCheckOfWhatWasNotInUse(t *testing.T) {
	for _, out := range []string{" weight=0", " disabled", " notready"} {
		inBubble(t, func(t *testing.T, h *host) {
			h.used(build("a", []string{one, two + out}))
			svc := h.used(build("a", []string{one, two}, probed))
			h.want(svc, "1 up, 2")
		})
	}
}

// An endpoint that its file took out of use for a while begins a slow start.
func TestSlowStartOfOneThatWasOut(t *testing.T) {
	for _, out := range []string{" weight=0", " disabled", " notready"} {
		inBubble(t, func(t *testing.T, h *host) {
			h.used(build("a", []string{one, two}, slowly))
			h.used(build("a", []string{one, two + out}, slowly))
			svc := h.used(build("a", []string{one, two}, slowly))
			h.want(svc, "1, 2 10%")
		})
	}
}

// What a service had before a restart counts once: when it goes, and comes back, it is new as a whole.
func TestServiceGoesAfterARestart(t *testing.T) {
	inBubble(t, func(t *testing.T, h *host) {
		svc := h.used(build("a", []string{one, two}, slowly))
		h.told()
		h = h.restart()
		h.Use(svc.Key, svc)
		h.Use(svc.Key, nil)
		if n := len(h.book.former.all); n != 0 {
			t.Errorf("%d endpoints are remembered of which nothing is known", n)
		}
		h.Use(svc.Key, svc)
		h.want(svc, "1, 2")
	})
}

// When the last slow start is over, nothing is left to wait for.
func TestStepsEndWithTheLastSlowStart(t *testing.T) {
	inBubble(t, func(t *testing.T, h *host) {
		h.used(build("a", []string{one}, slowly))
		svc := h.used(build("a", []string{one, two}, slowly))
		time.Sleep(2 * svc.SlowStart)
		h.told()
		h.want(svc, "1, 2")
		if left := time.Until(h.book.next()); left < time.Minute {
			t.Errorf("the next step is in %v", left)
		}
	})
}

// Of an endpoint that is not asked any more nothing is known, and a clock that was set back
// settles nothing later.
func TestSettledAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, h *host) {
		svc := h.used(build("a", []string{one, two}, closes))
		h.set(svc, source.CheckPassed, two)
		h.set(svc, source.CheckFailed, one)
		time.Sleep(time.Minute)
		if got := h.settled(svc); got != "[10.0.0.1]" {
			t.Errorf("one fails: %s", got)
		}
		out := h.used(build("a", []string{one + " disabled", two}, closes))
		if known := h.Conditions(svc.Key); len(known) != 1 || h.settled(out) != "[]" {
			t.Errorf("one is disabled: %v", known)
		}
		h.used(svc)
		h.checker.mu.Lock()
		q := healthcheck.Ask(svc, &svc.Endpoints[0])
		h.checker.results[q] = healthcheck.Result{State: source.CheckFailed, Since: time.Now().Add(24 * time.Hour), Error: "refused"}
		h.checker.mu.Unlock()
		h.checker.report(q, healthcheck.Result{})
		h.told()
		if got := h.settled(svc); got != "[10.0.0.1]" {
			t.Errorf("it fails since tomorrow: %s", got)
		}
	})
}
