package healthcheck

import (
	"testing"
	"time"

	"svcproxy.dev/svcproxy/source"
)

// TestRowsOfAnswersChangeTheState gives answers, + and -, and wants the state after each: u, d, or ? while unknown.
func TestRowsOfAnswersChangeTheState(t *testing.T) {
	up, down := Result{State: source.CheckPassed, Passed: true}, Result{State: source.CheckFailed, Passed: true, Error: "x"}
	for _, tt := range []struct {
		name          string
		from          Result
		answers, want string
	}{
		{"one that never passed needs one", Result{}, "---+", "dddu"},
		{"from then on rows decide", Result{}, "+--+---+-++", "uuuuuuddddu"},
		{"known to be up", up, "--+---", "uuuuud"},
		{"known to be down", down, "+-++", "dddu"},
		{"known never to have passed", Result{State: source.CheckFailed, Error: "x"}, "+", "u"},
		{"its row goes on", Result{State: source.CheckPassed, Passed: true, Error: "x", Row: 2}, "-", "d"},
		{"another row begins", Result{State: source.CheckFailed, Passed: true, Error: "x", Row: 9}, "++", "du"},
	} {
		check, now, got := &source.HealthCheck{Rise: 2, Fall: 3}, time.Unix(1, 0), ""
		r := tt.from
		for _, a := range tt.answers {
			was := r
			r = r.with(map[rune]error{'-': errDead}[a], now, time.Millisecond, check)
			got += string("?ud"[r.State])
			if changed := r.State != was.State; changed != (r.Since == now.Add(time.Millisecond) && r.Since != was.Since) {
				t.Errorf("%s: since %v after %q", tt.name, r.Since, got)
			}
			now = now.Add(time.Second)
		}
		if got != tt.want {
			t.Errorf("%s: %s gives %s, want %s", tt.name, tt.answers, got, tt.want)
		}
	}
}

func TestResumedKeepsTheRowForAMoment(t *testing.T) {
	now := time.Unix(1000, 0)
	for _, tt := range []struct {
		ago time.Duration
		row int
	}{{time.Second, 2}, {13 * time.Second, 0}, {-time.Second, 0}} {
		r := Result{State: source.CheckPassed, Passed: true, Error: "x", Row: 2, Asked: now.Add(-tt.ago), NotAsked: "y"}.resumed(now, every(5*time.Second))
		if r.State != source.CheckPassed || r.Row != tt.row || r.NotAsked != "" {
			t.Errorf("asked %v ago: %+v, want a row of %d", tt.ago, r, tt.row)
		}
	}
}
