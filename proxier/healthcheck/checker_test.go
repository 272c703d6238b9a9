package healthcheck

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/source"
)

// world is a Checker in a bubble, whose endpoints answer as the test says.
type world struct {
	*Checker
	t      *testing.T
	start  time.Time
	answer func(n int, turn int) (time.Duration, error) // of endpoint n, asked for the turn-th time

	mu      sync.Mutex
	asked   map[int][]time.Duration // when each was, since the start
	busy    int
	busiest int
	reports []entry
}

func newWorld(t *testing.T, cfg Config) *world {
	w := &world{t: t, start: time.Now(), asked: map[int][]time.Duration{}}
	w.answer = func(int, int) (time.Duration, error) { return time.Millisecond, nil }
	cfg.Log = slog.New(slog.DiscardHandler)
	if cfg.Report == nil {
		cfg.Report = func(q Question, r Result) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.reports = append(w.reports, entry{q: q, result: r})
		}
	}
	if cfg.Ask == nil {
		cfg.Ask = w.ask
	}
	w.Checker = NewChecker(cfg)
	return w
}

// run runs the Checker until the test ends.
func (w *world) run() {
	ctx, cancel := context.WithCancel(w.t.Context())
	ended := make(chan error)
	go func() { ended <- w.Run(ctx) }()
	w.t.Cleanup(func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			w.t.Errorf("Run: %v", err)
		}
	})
}

func (w *world) ask(ctx context.Context, q Question) error {
	n := number(q)
	w.mu.Lock()
	w.asked[n] = append(w.asked[n], time.Since(w.start))
	took, err := w.answer(n, len(w.asked[n]))
	w.busy++
	w.busiest = max(w.busiest, w.busy)
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		w.busy--
		w.mu.Unlock()
	}()
	select {
	case <-time.After(took):
		return err
	case <-ctx.Done():
		return of("connect", ctx.Err())
	}
}

// at returns when an endpoint was asked so far.
func (w *world) at(n int) []time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.asked[n])
}

// askedOf returns how many endpoints were asked.
func (w *world) askedOf() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.asked)
}

// restart begins the times of at again.
func (w *world) restart() {
	w.mu.Lock()
	defer w.mu.Unlock()
	clear(w.asked)
	w.start = time.Now()
}

func question(n int, check *source.HealthCheck) Question {
	addr := netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, uint32(10<<24+n))))
	svc := &source.Service{HealthCheck: check, Ports: []source.Port{{TargetPort: 80}}}
	return Ask(svc, &source.Endpoint{Addr: addr})
}

func number(q Question) int {
	b := q.At.Addr().As4()
	return int(binary.BigEndian.Uint32(b[:]) - 10<<24)
}

func every(iv time.Duration) *source.HealthCheck {
	return &source.HealthCheck{Type: source.CheckTCP, Interval: iv, IntervalDown: iv, Timeout: 2 * time.Second, Rise: 2, Fall: 3}
}

var errDead = errors.New("connection refused")

func TestSameQuestionIsAskedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, check := newWorld(t, Config{}), every(time.Second)
		q := question(1, check)
		w.run()
		w.Watch(q, check, Result{})
		w.Watch(q, check, Result{})
		time.Sleep(10 * time.Second)
		if n := len(w.at(1)); n < 10 || n > 12 {
			t.Errorf("asked %d times in 10 s", n)
		}
		w.Forget(q)
		w.restart()
		time.Sleep(10 * time.Second)
		if n := len(w.at(1)); n < 9 || w.Result(q).State != source.CheckPassed {
			t.Errorf("one still watches it: asked %d times in 10 s, %v", n, w.Result(q))
		}
		w.Forget(q)
		w.Forget(q)
		w.restart()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if n := len(w.at(1)); n != 0 || w.Result(q) != (Result{}) || len(w.schedule.due)+len(w.expressions) != 0 {
			t.Errorf("nobody watches it: asked %d times, %v", n, w.Result(q))
		}
	})
}

// TestForgottenWhileAsked forgets a question whose answer is still to come, and watches it again.
func TestForgottenWhileAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, check := newWorld(t, Config{}), every(time.Second)
		w.answer = func(_, turn int) (time.Duration, error) { return time.Second, errDead }
		q := question(1, check)
		w.run()
		w.Watch(q, check, Result{})
		time.Sleep(500 * time.Millisecond)
		w.Forget(q)
		w.Watch(q, check, Result{State: source.CheckPassed, Passed: true})
		time.Sleep(time.Second)
		synctest.Wait()
		if r := w.Result(q); r.State != source.CheckPassed || len(w.reports) != 0 {
			t.Errorf("the answer to a forgotten question is used: %v, %v", r, w.reports)
		}
		w.Forget(q)
		w.restart()
		time.Sleep(10 * time.Second)
		if times := w.at(1); len(times) != 0 {
			t.Errorf("a forgotten question is asked at %v", times)
		}
	})
}

func TestReportsChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, check := newWorld(t, Config{}), every(time.Second)
		check.IntervalDown = 3 * time.Second
		w.answer = func(_, turn int) (time.Duration, error) {
			if turn > 5 && turn <= 15 {
				return time.Millisecond, errDead
			}
			return time.Millisecond, nil
		}
		q := question(1, check)
		w.Watch(q, check, Result{})
		w.run()
		time.Sleep(time.Minute)
		synctest.Wait()
		var states []source.CheckResult
		for _, r := range w.reports {
			states = append(states, r.result.State)
		}
		if !slices.Equal(states, []source.CheckResult{source.CheckPassed, source.CheckFailed, source.CheckPassed}) {
			t.Errorf("reported %v, want up, down, up", states)
		}
		times := w.at(1)
		for i, iv := range map[int]time.Duration{5: time.Second, 10: 3 * time.Second, 16: 3 * time.Second, 20: time.Second} {
			if gap := times[i] - times[i-1]; gap < iv-tolerance(iv) || gap > iv+tolerance(iv) {
				t.Errorf("asked %v after the one before, want %v (turn %d)", gap, iv, i)
			}
		}
		down, up := w.reports[1].result, w.reports[2].result
		if down.Error != "connection refused" || down.Row != 3 || !down.Passed || up.Row != 2 || up.Error != "" {
			t.Errorf("reported %+v and %+v", down, up)
		}
	})
}

// Each type and outcome is a histogram from the start.
func TestAnswersHaveHistogramsFromTheStart(t *testing.T) {
	w := newWorld(t, Config{})
	if n := testutil.CollectAndCount(w.Answers()); n != 6*4 {
		t.Errorf("%d histograms before the first probe, want one of each type and outcome", n)
	}
	w.answers.Reset()
	check := every(time.Minute)
	check.Type = source.CheckExec
	for _, took := range []time.Duration{4 * time.Millisecond, 500 * time.Millisecond, time.Hour} {
		w.record(&entry{check: check}, nil, time.Now(), took)
	}
	want := `
# HELP svcproxy_endpoint_check_duration_seconds Time of a health check of an endpoint, by its type and what came of it.
# TYPE svcproxy_endpoint_check_duration_seconds histogram
`
	for i, n := range []int{0, 0, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2} {
		want += fmt.Sprintf("svcproxy_endpoint_check_duration_seconds_bucket{outcome=\"passed\",type=\"exec\",le=\"%v\"} %d\n", 0.001*math.Exp2(float64(i)), n)
	}
	want += `svcproxy_endpoint_check_duration_seconds_bucket{outcome="passed",type="exec",le="+Inf"} 3
svcproxy_endpoint_check_duration_seconds_sum{outcome="passed",type="exec"} 3600.504
svcproxy_endpoint_check_duration_seconds_count{outcome="passed",type="exec"} 3
`
	if err := testutil.CollectAndCompare(w.Answers(), strings.NewReader(want)); err != nil {
		t.Error(err)
	}
}

// An expression is compiled once for all endpoints that are checked with it, until the last is forgotten.
func TestExpressionIsCompiledOnce(t *testing.T) {
	c := NewChecker(Config{})
	check := every(time.Minute)
	check.Expect = "^220 "
	for n := range 2 {
		same := *check
		c.Watch(question(n, check), &same, Result{})
	}
	one, other := c.entries[question(0, check)].expect, c.entries[question(1, check)].expect
	if one != other || one.Regexp == nil || one.err != nil {
		t.Errorf("expressions %v and %v", one, other)
	}
	c.Forget(question(0, check))
	c.Forget(question(1, check))
	if len(c.expressions) != 0 {
		t.Errorf("%d expressions are left", len(c.expressions))
	}
}

// A question that is forgotten is not kept until its turn, which may be an hour away.
func TestForgottenIsNotKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, check := newWorld(t, Config{}), every(time.Hour)
		w.run()
		synctest.Wait()
		for n := range 100 {
			w.Watch(question(n, check), check, Result{})
			w.Forget(question(n, check))
		}
		if n := len(w.schedule.due); n != 0 {
			t.Errorf("%d questions are due that were forgotten", n)
		}
	})
}

// counted returns how many probes were counted.
func (c *Checker) counted(t testing.TB) (n uint64) {
	all := prometheus.NewRegistry()
	all.MustRegister(c.Answers())
	families, err := all.Gather()
	fatal.If(t, err)
	for _, m := range families[0].GetMetric() {
		n += m.GetHistogram().GetSampleCount()
	}
	return n
}
