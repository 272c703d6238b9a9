package conditions

import (
	"net/netip"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// The share of an endpoint that comes back grows in ten steps, each of which is told once.
func TestSlowStartSteps(t *testing.T) {
	inBubble(t, func(t *testing.T, h *host) {
		svc := build("a", []string{one, two}, probed, slowly)
		h.Use(svc.Key, svc)
		h.set(svc, source.CheckPassed, one, two)
		h.told()
		h.want(svc, "1 up, 2 up") // all of it is new
		h.set(svc, source.CheckFailed, two)
		h.told()
		h.set(svc, source.CheckPassed, two)
		h.told()
		for _, share := range []string{"10%", "20%", "30%", "40%", "50%", "60%", "70%", "80%", "90%"} {
			h.want(svc, "1 up, 2 up "+share)
			time.Sleep(svc.SlowStart/policy.SlowStartSteps - 2*batchTime)
			if n := len(h.told()); n != 1 {
				t.Errorf("after %s it was told %d times", share, n)
			}
		}
		h.want(svc, "1 up, 2 up")
		if time.Sleep(svc.SlowStart); len(h.told()) != 0 {
			t.Error("there is a step after the last")
		}
	})
}

// What begins a slow start, and what does not.
func TestSlowStartBegins(t *testing.T) {
	up, down := source.CheckPassed, source.CheckFailed
	tests := []struct {
		name string
		do   func(h *host) *source.Service
		want string
	}{
		{"the service is new", func(h *host) *source.Service {
			return h.used(build("a", []string{one, two}, slowly))
		}, "1, 2"},
		{"and has a check", func(h *host) *source.Service {
			svc := h.used(build("a", []string{one, two}, probed, slowly))
			h.set(svc, up, one)
			h.told()
			h.set(svc, up, two)
			return svc
		}, "1 up, 2 up"},
		{"and its first result is bad", func(h *host) *source.Service {
			svc := h.used(build("a", []string{one, two}, probed, slowly))
			h.set(svc, up, one)
			h.set(svc, down, two)
			h.told()
			h.set(svc, up, two)
			return svc
		}, "1 up, 2 up 10%"},
		{"an endpoint is new", func(h *host) *source.Service {
			h.used(build("a", []string{one}, slowly))
			return h.used(build("a", []string{one, two}, slowly))
		}, "1, 2 10%"},
		{"and has a check", func(h *host) *source.Service {
			h.set(h.used(build("a", []string{one}, probed, slowly)), up, one)
			svc := h.used(build("a", []string{one, two}, probed, slowly))
			h.want(svc, "1 up, 2")
			h.set(svc, up, two)
			return svc
		}, "1 up, 2 up 10%"},
		{"an endpoint is gone for a while", func(h *host) *source.Service {
			h.used(build("a", []string{one, two}, slowly))
			h.used(build("a", []string{one}, slowly))
			return h.used(build("a", []string{one, two}, slowly))
		}, "1, 2 10%"},
		{"an endpoint is enabled", func(h *host) *source.Service {
			h.used(build("a", []string{one, two + " disabled"}, slowly))
			return h.used(build("a", []string{one, two}, slowly))
		}, "1, 2 10%"},
		{"an endpoint is ready, and another has a weight", func(h *host) *source.Service {
			h.used(build("a", []string{one + " weight=0", two + " notready", three}, slowly))
			return h.used(build("a", []string{one, two, three}, slowly))
		}, "1 10%, 2 10%, 3"},
		{"a drain ends", func(h *host) *source.Service {
			svc := h.used(build("a", []string{one, two}, slowly))
			target := DrainTarget{Addr: netip.MustParseAddr(two), Service: svc.Key}
			h.drain(target)
			h.want(svc, "1, 2 drained")
			if had, err := h.Undrain(target); !had || err != nil {
				h.t.Errorf("undrained: %v, %v", had, err)
			}
			return svc
		}, "1, 2 10%"},
		{"the service gets slow_start", func(h *host) *source.Service {
			h.used(build("a", []string{one, two}))
			return h.used(build("a", []string{one, two}, slowly))
		}, "1, 2"},
		{"the service gets a check", func(h *host) *source.Service {
			h.used(build("a", []string{one, two}, slowly))
			svc := h.used(build("a", []string{one, two}, probed, slowly))
			h.set(svc, up, one, two)
			return svc
		}, "1 up, 2 up"},
		{"the check changes", func(h *host) *source.Service {
			h.set(h.used(build("a", []string{one, two}, probed, slowly)), up, one, two)
			h.told()
			return h.used(build("a", []string{one, two}, probed, slowly, func(s *source.Service) { s.HealthCheck.Rise = 7 }))
		}, "1 up, 2 up"},
		{"there is no slow start", func(h *host) *source.Service {
			h.set(h.used(build("a", []string{one}, probed)), up, one)
			svc := h.used(build("a", []string{one, two}, probed))
			h.set(svc, up, two)
			return svc
		}, "1 up, 2 up"},
		{"it is down again", func(h *host) *source.Service {
			svc := h.used(build("a", []string{one, two}, probed, slowly))
			h.set(svc, up, one, two)
			for range 3 {
				h.set(svc, down, two)
				h.told()
				h.set(svc, up, two)
				h.told()
				time.Sleep(svc.SlowStart / 2)
			}
			h.set(svc, down, two)
			return svc
		}, "1 up, 2 down"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, h *host) {
				svc := tt.do(h)
				h.told()
				h.want(svc, tt.want)
			})
		})
	}
}

// used takes a service into use, and returns it.
func (h *host) used(svc *source.Service) *source.Service {
	h.Use(svc.Key, svc)
	return svc
}

func (h *host) drain(target DrainTarget) {
	h.t.Helper()
	if err := h.Drain(target, policy.Drain{By: "root"}); err != nil {
		h.t.Error(err)
	}
}

// A clock that is set back makes no slow start longer.
func TestSlowStartClock(t *testing.T) {
	now := time.Now()
	e := endpoint{began: now.Add(time.Hour)}
	if n, next := e.share(time.Minute, now); n != 1 || !next.Equal(now.Add(6*time.Second)) {
		t.Errorf("%d tenths, more in %v", n, next.Sub(now))
	}
	if n, next := e.share(time.Nanosecond, now); n != 0 || !next.IsZero() {
		t.Errorf("%d tenths of a slow start without length", n)
	}
}
