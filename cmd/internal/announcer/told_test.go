package announcer

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/proxier/announce"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// What was announced before is at the Speaker when Told returns, also where opening one takes its time.
func TestToldWaitsUntilTheSpeakerHasTheRoutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &wire{}
		b := bgpTo(configs.BGPPeer{Address: peerAddr})
		a, ready, end := begin(t, w, b, func(c *Config) {
			c.Open = func(b configs.BGP, p Peers) (Speaker, error) {
				time.Sleep(time.Second)
				return w.open(b, p)
			}
		})
		told := func(what string, marked int, wait time.Duration) {
			t.Helper()
			began := time.Now()
			if got, err := a.Told(t.Context()); got != marked || err != nil || time.Since(began) != wait {
				t.Errorf("%s: %d, %v after %v; want %d after %v", what, got, err, time.Since(began), marked, wait)
			}
		}
		a.Announce(policy.IPv4, change("203.0.113.1", source.BGP))
		told("before the first sync", 0, 0)
		ready()
		synctest.Wait()
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second/2, errors.New("too long"))
		defer cancel()
		if _, err := a.Told(ctx); err == nil || err.Error() != "too long" {
			t.Errorf("while it opens: %v", err)
		}
		told("the first", 0, time.Second/2)
		w.expect(t, opened, "routes 203.0.113.1")
		a.Announce(policy.IPv4, change("203.0.113.1", 0, announce.Loss{Wanted: true, Serves: true}))
		told("a drain", 1, 0)
		told("and nothing new", 1, 0)
		w.expect(t, "routes 203.0.113.1!")
		time.Sleep(ShutdownTime)
		w.expect(t, "routes ")
		told("after that", 0, 0)
		end()
		a.Announce(policy.IPv4, change("203.0.113.1", source.BGP))
		told("after the end", 0, 0)
	})
}
