package healthz

import (
	"errors"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"svcproxy.dev/svcproxy/proxier/loop"
	"svcproxy.dev/svcproxy/proxier/policy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A fakeLoop is ready when ready is closed.
type fakeLoop struct {
	ready chan struct{}
	alive time.Time
}

func (l *fakeLoop) Ready() <-chan struct{} { return l.ready }
func (l *fakeLoop) Alive() time.Time       { return l.alive }

func TestHealthyStates(t *testing.T) {
	failed := errors.New("no")
	type step struct {
		after  time.Duration // since the step before
		result *loop.SyncResult
		queued time.Duration // before now; 0: a resync
		want   bool
	}
	ok4, bad4 := &loop.SyncResult{Family: policy.IPv4}, &loop.SyncResult{Family: policy.IPv4, Err: failed}
	ok6 := &loop.SyncResult{Family: policy.IPv6}
	tests := []struct {
		name  string
		steps []step
	}{
		{"starting", []step{{after: time.Hour, want: true}}},
		{"synced long ago, nothing new", []step{{result: ok4, want: true}, {after: time.Hour, want: true}}},
		{"failing change", []step{
			{result: ok4, want: true},
			{result: bad4, queued: timeout / 2, want: true},
			{after: timeout/2 - time.Second, want: true},
			{after: time.Second, want: false},
			{result: ok6, want: false},
			{result: ok4, want: true},
		}},
		{"a family that never worked counts only where there is no other", []step{
			{result: bad4, want: true},
			{after: 2 * time.Minute, want: false},
			{result: ok6, want: true},
			{after: time.Hour, result: bad4, want: true},
			{result: ok4, want: true},
			{after: time.Hour, result: bad4, want: true},
			{after: 2 * time.Minute, want: false},
		}},
		{"failing resync", []step{
			{result: bad4, want: true},
			{after: timeout - time.Second, result: bad4, want: true},
			{after: time.Second, want: false},
			{result: ok4, want: true},
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := NewHealth()
				for i, s := range tt.steps {
					time.Sleep(s.after)
					if s.result != nil {
						r := *s.result
						r.Start = time.Now()
						if s.queued != 0 {
							r.Queued = r.Start.Add(-s.queued)
						}
						h.Synced(r)
					}
					if got := h.Healthy(); got != s.want {
						t.Errorf("step %d: Healthy() = %v, want %v", i, got, s.want)
					}
				}
			})
		})
	}
}

// A family that a change of mode leaves out does not count, whatever waits there.
func TestDroppedFamilyIsHealthy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := NewHealth()
		for _, fam := range []policy.Family{policy.IPv4, policy.IPv6} {
			h.Synced(loop.SyncResult{Family: fam, Start: time.Now()})
		}
		h.Synced(loop.SyncResult{Family: policy.IPv6, Start: time.Now(), Err: errors.New("no")})
		time.Sleep(timeout)
		if h.Healthy() {
			t.Error("healthy although IPv6 has been failing for so long")
		}
		h.Dropped(policy.IPv6)
		if !h.Healthy() {
			t.Error("unhealthy by a family that is not in use")
		}
	})
}

func TestStuckLoopIsUnhealthy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := NewHealth()
		h.Watch(&fakeLoop{alive: time.Now()})
		time.Sleep(timeout - time.Second)
		if !h.Healthy() {
			t.Error("unhealthy a second before the time is over")
		}
		time.Sleep(time.Second)
		if h.Healthy() {
			t.Error("healthy after so long without a sign of life")
		}
	})
}

func TestHandlerAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // starts at 2000-01-01 00:00 UTC
		h, m := NewHealth(), NewMetrics("v1")
		l := &fakeLoop{ready: make(chan struct{})}
		h.Watch(l)
		handler := Handlers("a", "", h, m)["a"]
		check := func(path string, code int, body string) {
			t.Helper()
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
			if w.Code != code || w.Body.String() != body {
				t.Errorf("%s: %d %q\n   want: %d %q", path, w.Code, w.Body, code, body)
			}
		}
		check("/readyz", 503, "not ready: waiting for the first complete sync\n")
		close(l.ready)
		check("/readyz", 200, "ok\n")
		check("/healthz", 200, `{"lastUpdated":"2000-01-01T00:00:00Z","currentTime":"2000-01-01T00:00:00Z","nodeEligible":true,"healthy":true}`)

		h.Synced(loop.SyncResult{Family: policy.IPv4, Start: time.Now(), Duration: time.Second})
		h.Synced(loop.SyncResult{Family: policy.IPv4, Start: time.Now(), Err: errors.New("no")})
		time.Sleep(timeout)
		four := `"status":{"IPv4":{"lastUpdated":"2000-01-01T00:00:01Z","healthy":false}}}`
		check("/healthz", 503, `{"lastUpdated":"2000-01-01T00:00:01Z","currentTime":"2000-01-01T00:01:00Z","nodeEligible":true,"healthy":false,`+four)
		check("/livez", 503, `{"lastUpdated":"2000-01-01T00:00:01Z","currentTime":"2000-01-01T00:01:00Z","healthy":false,`+four)
		check("/livez?exclude=sync", 200, `{"lastUpdated":"2000-01-01T00:01:00Z","currentTime":"2000-01-01T00:01:00Z","healthy":true,`+four)
		l.alive = time.Now().Add(-timeout)
		check("/livez?exclude=sync", 503, `{"lastUpdated":"2000-01-01T00:00:01Z","currentTime":"2000-01-01T00:01:00Z","healthy":false,`+four)
		l.alive = time.Now()
		h.Synced(loop.SyncResult{Family: policy.IPv6, Start: time.Now()})
		both := strings.TrimSuffix(four, "}}") + `,"IPv6":{"lastUpdated":"2000-01-01T00:01:00Z","healthy":true}}}`
		check("/livez", 503, `{"lastUpdated":"2000-01-01T00:01:00Z","currentTime":"2000-01-01T00:01:00Z","healthy":false,`+both)
		h.Synced(loop.SyncResult{Family: policy.IPv4, Start: time.Now()})
		h.SetEligible(false)
		check("/healthz", 503, `{"lastUpdated":"2000-01-01T00:01:00Z","currentTime":"2000-01-01T00:01:00Z","nodeEligible":false,"healthy":true,`+
			`"status":{"IPv4":{"lastUpdated":"2000-01-01T00:01:00Z","healthy":true},"IPv6":{"lastUpdated":"2000-01-01T00:01:00Z","healthy":true}}}`)
		h.SetEligible(true)
		drain := &policy.Drain{Reason: `new "disk"`, By: "anna", At: time.Now()}
		h.OnDrain(func() *policy.Drain { return drain })
		check("/healthz", 503, `{"lastUpdated":"2000-01-01T00:01:00Z","currentTime":"2000-01-01T00:01:00Z","nodeEligible":true,"drained":{"reason":"new \"disk\"","since":"2000-01-01T00:01:00Z"},"healthy":true,`+
			`"status":{"IPv4":{"lastUpdated":"2000-01-01T00:01:00Z","healthy":true},"IPv6":{"lastUpdated":"2000-01-01T00:01:00Z","healthy":true}}}`)
		check("/livez", 200, `{"lastUpdated":"2000-01-01T00:01:00Z","currentTime":"2000-01-01T00:01:00Z","healthy":true,`+
			`"status":{"IPv4":{"lastUpdated":"2000-01-01T00:01:00Z","healthy":true},"IPv6":{"lastUpdated":"2000-01-01T00:01:00Z","healthy":true}}}`)
		check("/readyz", 200, "ok\n")
		drain = nil
		check("/healthz", 200, `{"lastUpdated":"2000-01-01T00:01:00Z","currentTime":"2000-01-01T00:01:00Z","nodeEligible":true,"healthy":true,`+
			`"status":{"IPv4":{"lastUpdated":"2000-01-01T00:01:00Z","healthy":true},"IPv6":{"lastUpdated":"2000-01-01T00:01:00Z","healthy":true}}}`)
		check("/else", 404, "404 page not found\n")

		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
		for _, want := range []string{
			`svcproxy_build_info{version="v1"} 1`,
			`svcproxy_proxy_healthz_total{code="200"} 2`,
			`svcproxy_proxy_livez_total{code="503"} 3`,
			"go_goroutines ",
		} {
			if !strings.Contains(w.Body.String(), want) {
				t.Errorf("/metrics has no %s", want)
			}
		}
	})
}
