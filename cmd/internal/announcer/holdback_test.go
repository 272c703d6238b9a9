package announcer

import (
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

const opened = "open 64512 192.0.2.1 map[192.0.2.254:]"

// lateBy has IPv6 late until over is set.
func lateBy(over *atomic.Bool, log *strings.Builder) func(*Config) {
	return func(c *Config) {
		c.Log = slog.New(slog.NewTextHandler(log, nil))
		c.Late = func(context.Context) []policy.Family {
			if over.Load() {
				return nil
			}
			return []policy.Family{policy.IPv6}
		}
	}
}

func restarting(d time.Duration) configs.BGP {
	b := bgpTo(configs.BGPPeer{Address: peerAddr, AS: 64500})
	b.GracefulRestart = d
	return b
}

// The first routes wait for a family that the kernel may serve and that is not synced, so that routers keep its routes.
func TestHeldBackForFamily(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &wire{}
		var over atomic.Bool
		var log strings.Builder
		a, ready, _ := begin(t, w, restarting(2*time.Minute), lateBy(&over, &log))
		a.Announce(policy.IPv4, change("203.0.113.1", source.BGP))
		ready()
		time.Sleep(time.Minute)
		w.expect(t, opened)
		a.routers.mu.Lock()
		a.routers.running.speaker.(*speaker).quiet = true
		a.routers.mu.Unlock()
		if s := a.Sessions(); len(s) != 1 || !strings.HasPrefix(s[0].LastError, "held back until ") || !strings.Contains(s[0].LastError, ":30: ipv6 is not synced") {
			t.Errorf("%+v", s)
		}
		over.Store(true)
		a.Announce(policy.IPv6, change("2001:db8::1", source.BGP))
		w.expect(t, "routes 203.0.113.1 2001:db8::1")
		if s := a.Sessions(); s[0].LastError != "" {
			t.Errorf("afterwards: %+v", s)
		}
		over.Store(false) // as if another backend began
		a.Announce(policy.IPv4, change("203.0.113.2", source.BGP))
		w.expect(t, "routes 203.0.113.1 203.0.113.2 2001:db8::1")
		if got := strings.Count(log.String(), "held back"); got != 2 {
			t.Errorf("%d lines:\n%s", got, log.String())
		}
	})
}

// A family that fails for good holds nothing back once routers keep its routes no longer, or where they never do.
func TestHeldBackNoLonger(t *testing.T) {
	for _, tt := range []struct{ restart, wait time.Duration }{
		{2 * time.Minute, 90 * time.Second}, {10 * time.Second, 5 * time.Second}, {0, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := &wire{}
			var log strings.Builder
			a, ready, _ := begin(t, w, restarting(tt.restart), lateBy(new(atomic.Bool), &log))
			a.Announce(policy.IPv4, change("203.0.113.1", source.BGP))
			ready()
			if tt.wait > 0 {
				time.Sleep(tt.wait - time.Millisecond)
				w.expect(t, opened)
				time.Sleep(time.Millisecond)
				w.expect(t, "routes 203.0.113.1")
				return
			}
			w.expect(t, opened, "routes 203.0.113.1")
		})
	}
}

// A family that is synced a moment after it was asked about is found without a word of it.
func TestHeldBackUntilNothingIsLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &wire{}
		var over atomic.Bool
		var log strings.Builder
		_, ready, _ := begin(t, w, restarting(2*time.Minute), lateBy(&over, &log))
		ready()
		w.expect(t, opened)
		over.Store(true)
		time.Sleep(lookAgain)
		w.expect(t, "routes ")
	})
}

// A daemon that ends while routes are held back leaves routers what they have.
func TestEndWhileHeldBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &wire{}
		var log strings.Builder
		b := restarting(2 * time.Minute)
		b.OnStop = "withdraw"
		a, ready, end := begin(t, w, b, lateBy(new(atomic.Bool), &log))
		a.Announce(policy.IPv4, change("203.0.113.1", source.BGP))
		ready()
		w.expect(t, opened)
		end()
		w.expect(t, "stop graceful=true")
	})
}
