package bgp

import (
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// What GoBGP warns of again and again is one line a minute, of each router and reason.
func TestLogIsLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var text strings.Builder
		log := slog.New(newTap(slog.NewTextHandler(&text, nil), func(netip.Addr, message) {}, func(netip.Addr) bool { return false }))
		one, two := log.With("Key", "192.0.2.1"), log.With("Key", "192.0.2.2")
		for range 84 {
			one.Warn("Closed an accepted connection", "State", "BGP_FSM_ESTABLISHED")
			time.Sleep(60 * time.Millisecond)
		}
		two.Warn("Closed an accepted connection")
		one.Warn("another reason")
		if n := strings.Count(text.String(), "\n"); n != 3 {
			t.Errorf("%d lines:\n%s", n, text.String())
		}
		text.Reset()
		time.Sleep(logEvery)
		one.Warn("Closed an accepted connection")
		if got := text.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "left_out=83") {
			t.Errorf("after a minute: %q", got)
		}
	})
}
