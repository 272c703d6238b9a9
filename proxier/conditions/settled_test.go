package conditions

import (
	"fmt"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/internal/fatal"
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
// failed when they had the time to come back, unless all are used until then. A restart settles
// nothing sooner.
func TestSettledAfterOthersHadTimeToFail(t *testing.T) {
	for _, tt := range []struct {
		refuse           bool
		fail, back, over string // when all have failed for long, the first is back, others are not
	}{
		{false, "[10.0.0.1 fd00::1]", "[10.0.0.1 fd00::1]", "[10.0.0.1 10.0.0.2 fd00::1]"},
		{true, "[10.0.0.1 10.0.0.2 10.0.0.3 fd00::1]", "[10.0.0.1 10.0.0.2 fd00::1]", "[10.0.0.1 10.0.0.2 fd00::1]"},
	} {
		inBubble(t, func(t *testing.T, h *host) {
			svc := build("a", []string{one, two, three, "fd00::1", "fd00::2"}, closes, func(s *source.Service) { s.HealthCheck.Refuse = tt.refuse })
			is := func(when, want string) {
				t.Helper()
				if got := h.settled(svc); got != want {
					t.Errorf("%s, refuse %v: %s, want %s", when, tt.refuse, got, want)
				}
			}
			h.Use(svc.Key, svc)
			h.set(svc, source.CheckPassed, one, two, three, "fd00::1", "fd00::2")
			time.Sleep(time.Minute)
			h.set(svc, source.CheckFailed, one)
			time.Sleep(4 * time.Second)
			is("one fails", "[]")
			h.set(svc, source.CheckFailed, two)
			time.Sleep(2 * time.Second)
			is("one fails for long", "[10.0.0.1]")
			h.set(svc, source.CheckFailed, three, "fd00::1")
			time.Sleep(time.Minute)
			is("all fail for long", tt.fail)
			h.set(svc, source.CheckPassed, three)
			h.told()
			is("the first is back", tt.back)
			time.Sleep(time.Second)
			fatal.If(t, h.save(true))
			h = h.restart()
			h.Use(svc.Key, svc)
			time.Sleep(2 * time.Second)
			is("after a restart", tt.back)
			time.Sleep(time.Second)
			is("the others are not back", tt.over)
			never := build("b", []string{one, two}, probed, func(s *source.Service) { s.Ports[0].Protocol = source.UDP })
			h.Use(never.Key, never)
			h.set(never, source.CheckFailed, one)
			time.Sleep(time.Minute)
			if got := h.settled(never); got != "[]" {
				t.Errorf("of a service that closes nothing: %s", got)
			}
		})
	}
}

// Those that may come back with the first are not settled before they had the time, also where
// connections to them are refused.
func TestNotSettledOnTheWayBack(t *testing.T) {
	for _, refuse := range []bool{false, true} {
		inBubble(t, func(t *testing.T, h *host) {
			svc := build("a", []string{one, two}, closes, func(s *source.Service) { s.HealthCheck.Refuse = refuse })
			h.Use(svc.Key, svc)
			h.set(svc, source.CheckPassed, one, two)
			h.told()
			h.set(svc, source.CheckFailed, one, two)
			time.Sleep(3 * time.Second)
			h.set(svc, source.CheckPassed, one)
			time.Sleep(1900 * time.Millisecond)
			if got := h.settled(svc); got != "[]" {
				t.Errorf("refuse %v, just after the first is back: %s", refuse, got)
			}
			time.Sleep(300 * time.Millisecond)
			if got := h.settled(svc); got != "[10.0.0.2]" {
				t.Errorf("refuse %v, long after the first is back: %s", refuse, got)
			}
		})
	}
}
