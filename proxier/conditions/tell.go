package conditions

import (
	"context"
	"log/slog"
	"time"

	"svcproxy.dev/svcproxy/proxier/healthcheck"
	"svcproxy.dev/svcproxy/source"
)

const (
	// maxTold is how many changes of endpoints, and of services, the log names in tellTime.
	maxTold = 10

	// tellTime is after how long it has the number of the others.
	tellTime = 10 * time.Second
)

// A teller collects lines, of which there are never many: a thousand endpoints that fail are
// ten lines, and a number.
type teller struct {
	lines     []func(*slog.Logger) // to be written when nobody waits for the Keeper
	since     time.Time            // tellTime is counted from then on
	endpoints tally
	services  tally
}

// A tally counts changes since teller.since.
type tally struct{ told, worse, better int }

// admit counts a change, and reports whether it is one of the first.
func (t *tally) admit(worse bool) bool {
	switch {
	case t.told < maxTold:
		t.told++
		return true
	case worse:
		t.worse++
	default:
		t.better++
	}
	return false
}

// changed notes that the check of an endpoint says something else than before.
func (t *teller) changed(p endpointKey, was, is healthcheck.Result, now time.Time) {
	t.roll(now)
	down := is.State == source.CheckFailed
	if !t.endpoints.admit(down) {
		return
	}
	args := []any{"service", p.Key, "endpoint", p.at}
	switch {
	case down:
		t.add(slog.LevelWarn, "endpoint down", append(args, "err", is.Error)...)
	case was.State == source.CheckFailed && is.Since.After(was.Since):
		t.add(slog.LevelInfo, "endpoint up", append(args, "after", is.Since.Sub(was.Since).Round(time.Millisecond))...)
	default:
		t.add(slog.LevelInfo, "endpoint up", args...)
	}
}

// failing notes that s.failing has changed.
func (t *teller) failing(s *service, now time.Time) {
	t.roll(now)
	switch {
	case !t.services.admit(s.failing):
	case !s.failing:
		t.add(slog.LevelInfo, "endpoints of the service pass their check again", "service", s.key)
	case s.HealthCheck.Refuse:
		t.add(slog.LevelError, "no endpoint of the service, or of a family of it, passes its check: connections are refused", "service", s.key)
	default:
		t.add(slog.LevelError, "no endpoint of the service, or of a family of it, passes its check: all are used", "service", s.key)
	}
}

func (t *teller) add(level slog.Level, what string, args ...any) {
	t.lines = append(t.lines, func(log *slog.Logger) { log.Log(context.Background(), level, what, args...) })
}

// roll begins to count again when it is time to, with the numbers of what was not told.
func (t *teller) roll(now time.Time) {
	if now.Sub(t.since) < tellTime {
		return
	}
	if e := t.endpoints; e.worse+e.better > 0 {
		t.add(slog.LevelWarn, "more endpoints have changed: see svcproxy status", "down", e.worse, "up", e.better)
	}
	if s := t.services; s.worse+s.better > 0 {
		t.add(slog.LevelError, "of more services all endpoints fail their check, or not any more: see svcproxy status", "failing", s.worse, "again", s.better)
	}
	t.since, t.endpoints, t.services = now, tally{}, tally{}
}

// due returns when roll has something to say; zero: it has not.
func (t *teller) due() time.Time {
	if t.endpoints.worse+t.endpoints.better+t.services.worse+t.services.better == 0 {
		return time.Time{}
	}
	return t.since.Add(tellTime)
}

// takeLines returns the lines to write now.
func (t *teller) takeLines(now time.Time) []func(*slog.Logger) {
	t.roll(now)
	lines := t.lines
	t.lines = nil
	return lines
}
