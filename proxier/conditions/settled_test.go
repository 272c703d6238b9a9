package conditions

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"svcproxy.dev/svcproxy/proxier/healthcheck"
	"svcproxy.dev/svcproxy/source"
)

// closes has connections to endpoints that fail closed, in checks of four seconds down and three back.
func closes(s *source.Service) {
	probed(s)
	s.HealthCheck.IntervalDown, s.HealthCheck.Timeout = time.Second, time.Second
	s.CloseConnections = source.CloseFailed
}

// settled returns the endpoints that are.
func (h *host) settled(svc *source.Service) string {
	var list []string
	for i := range svc.Endpoints {
		if at := svc.EndpointAt(&svc.Endpoints[i]); h.Conditions(svc.Key)[at].Settled {
			list = append(list, at.Addr().String())
		}
	}
	return fmt.Sprint(list)
}

// That an endpoint fails is settled when others had the time to fail with it, and after all have
// failed when they had the time to come back. A restart settles nothing sooner.
func TestSettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		h := run(t, dir)
		svc := build("a", []string{one, two, three, "fd00::1", "fd00::2"}, closes)
		is := func(when, want string) {
			t.Helper()
			if got := h.settled(svc); got != want {
				t.Errorf("%s: %s, want %s", when, got, want)
			}
		}
		h.Use(svc.Key, svc)
		h.set(svc, healthcheck.Up, one, two, three, "fd00::1", "fd00::2")
		time.Sleep(time.Minute)
		h.set(svc, healthcheck.Down, one)
		time.Sleep(3 * time.Second)
		is("one fails", "[]")
		h.set(svc, healthcheck.Down, two)
		time.Sleep(2 * time.Second)
		is("one fails for long", "[10.0.0.1]")
		h.set(svc, healthcheck.Down, three, "fd00::1")
		time.Sleep(time.Minute)
		h.set(svc, healthcheck.Up, three)
		time.Sleep(2 * time.Second)
		is("the first is back", "[fd00::1]")
		h.told()
		synctest.Wait()
		if err := h.save(true); err != nil {
			t.Fatal(err)
		}
		h = run(t, dir)
		h.Use(svc.Key, svc)
		is("after a restart", "[fd00::1]")
		time.Sleep(2 * time.Second)
		is("the others are not back", "[10.0.0.1 10.0.0.2 fd00::1]")
		if calls := h.told(); len(calls) == 0 {
			t.Error("nobody is told")
		}
		never := build("b", []string{one, two}, probed, func(s *source.Service) { s.Ports[0].Protocol = source.SCTP })
		h.Use(never.Key, never)
		h.set(never, healthcheck.Down, one)
		time.Sleep(time.Minute)
		if got := h.settled(never); got != "[]" {
			t.Errorf("of a service that closes nothing: %s", got)
		}
	})
}
