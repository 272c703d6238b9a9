package loop

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"svcproxy.dev/svcproxy/internal/awaited"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/policy/policytest"
)

// waits is a kernel whose Sync waits for a program until it is told to go on, or given up.
type waits struct {
	*kernel
	ended chan struct{}
}

func (w waits) Sync(ctx context.Context, st *policy.State, d *policy.Delta) error {
	defer awaited.Begin(ctx, "ip6tables-restore", func() string { return "a lock is held" })()
	select {
	case <-w.ended:
		return w.kernel.Sync(ctx, st, d)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// A Sync that makes no progress is reported after 2 s, to the caller that waits for it too, and after 15 s
// the other family is ready without it.
func TestLoopReportsAStall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := waits{&kernel{}, make(chan struct{})}
		var log strings.Builder
		l := start(t, &kernel{}, func(c *Config) {
			c.Backends[policy.IPv6] = w
			c.Log = slog.New(slog.NewTextHandler(&log, nil))
		})
		l.Apply(policytest.Set(policytest.File("a", "x 10.96.0.1:80")))
		l.Synced("file")
		time.Sleep(time.Second)
		if got := l.Stalls(); len(got) > 0 {
			t.Errorf("after 1 s: %v", got)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if got := l.Stalls(); len(got) != 1 || got[0].Family != policy.IPv6 || time.Since(got[0].Since) != 3*time.Second {
			t.Errorf("after 3 s: %+v", got)
		}
		const want = "the sync waits for ip6tables-restore; a lock is held"
		if st := l.Status().Families; st[0].Stalled != "" || st[1].Stalled != want {
			t.Errorf("status %+v", st)
		}
		if n := strings.Count(log.String(), "no progress; waiting"); n != 1 {
			t.Errorf("%d lines of %s", n, &log)
		}
		if err := l.Held(t.Context(), policy.IPv6); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Held: %v", err)
		}
		if readyNow(l) {
			t.Error("ready before IPv6 has had its time")
		}
		time.Sleep(15 * time.Second)
		synctest.Wait()
		if !readyNow(l) || !strings.Contains(log.String(), "sync keeps failing; continuing without it") {
			t.Errorf("not ready without IPv6: %s", &log)
		}
		close(w.ended)
		time.Sleep(time.Second)
		if err := l.Held(t.Context(), policy.IPv6); err != nil || len(l.Stalls()) > 0 {
			t.Errorf("after it went on: %v, %v", err, l.Stalls())
		}
	})
}

func readyNow(l *Loop) bool {
	select {
	case <-l.Ready():
		return true
	default:
		return false
	}
}

// A sync of many parts, none of which takes long, is no stall.
func TestLoopKnowsProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &kernel{}
		l := start(t, k, func(c *Config) { c.Backends[policy.IPv4] = steps{k} })
		l.Synced("file")
		for range 20 {
			time.Sleep(time.Second)
			if got := l.Stalls(); len(got) > 0 {
				t.Errorf("stalled: %v", got)
			}
		}
	})
}

// steps takes 20 parts of 1 s.
type steps struct{ *kernel }

func (s steps) Sync(ctx context.Context, st *policy.State, d *policy.Delta) error {
	for range 20 {
		time.Sleep(time.Second)
		proxier.Progressed(ctx)
	}
	return s.kernel.Sync(ctx, st, d)
}
