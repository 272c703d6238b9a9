package healthcheck

import (
	"time"

	"svcproxy.dev/svcproxy/source"
)

// A Result is what is known of an endpoint by one question. The zero Result: nothing.
type Result struct {
	State  source.CheckResult
	Since  time.Time     // State is so; zero while that is CheckUnknown
	Asked  time.Time     // when the last probe began; zero: none did
	Took   time.Duration // of that
	Error  string        // of that: at most 200 bytes, all printable; empty: it passed
	Passed bool          // one has ever passed
	Row    int           // answers in a row as the last one

	// NotAsked is why this host could not ask when it should have, after that last probe; empty:
	// it could. State may not be true any more then. At most 200 bytes, all printable.
	NotAsked string
}

// with returns the result after one more answer, err, to a probe that began at
// asked: one pass brings an endpoint up that never passed, and the first failure of
// one without a state brings it down. From then on rows decide.
func (r Result) with(err error, asked time.Time, took time.Duration, check *source.HealthCheck) Result {
	passed := err == nil
	if passed != (r.Error == "") {
		r.Row = 0
	}
	r.Row++
	r.Asked, r.Took, r.Error, r.NotAsked = asked, took, words(err), ""
	to := r.decided(passed, check)
	r.Passed = r.Passed || passed
	if to != r.State {
		r.State, r.Since = to, asked.Add(took)
	}
	return r
}

// decided returns the state after an answer that is in r already.
func (r Result) decided(passed bool, check *source.HealthCheck) source.CheckResult {
	switch {
	case passed && (r.State == source.CheckUnknown || !r.Passed || r.Row >= int(check.Rise)):
		return source.CheckPassed
	case !passed && (r.State == source.CheckUnknown || r.Row >= int(check.Fall)):
		return source.CheckFailed
	}
	return r.State
}

// resumed returns what is still true of a result from before a restart: its state,
// and its row where no answer is missing in it.
func (r Result) resumed(now time.Time, check *source.HealthCheck) Result {
	if age := now.Sub(r.Asked); age < 0 || age > 2*check.Interval+check.Timeout {
		r.Row = 0
	}
	r.NotAsked = ""
	return r
}
