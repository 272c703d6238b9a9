package filter

import (
	"strings"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/netutil/xtables"
)

var forward = jumpsObject("filter", "FORWARD")

// Moves follow at once, and for a while none after moveLimit within moveWindow, and then
// after ever longer pauses, until a move lasts.
func TestMovesHaveGrowingPauses(t *testing.T) {
	now := time.Now()
	p := &place{}
	after := func(d time.Duration, want time.Duration) {
		t.Helper()
		now = now.Add(d)
		if got := p.count(now); got != want {
			t.Errorf("a move %s later: pause %s, want %s", d, got, want)
		}
	}
	after(0, 0)
	after(moveWindow*2/3, 0)
	after(moveWindow*2/3, 0) // the first one is too long ago
	after(0, firstPause)
	after(firstPause, 2*firstPause)
	after(2*firstPause, 4*firstPause)
	for d := 4 * firstPause; d < maxPause; d *= 2 {
		after(d, min(2*d, maxPause))
	}
	after(maxPause, maxPause)
	after(3*maxPause, 0)
	after(0, 0)
	after(0, firstPause)
}

// While jumps are left behind foreign rules they count as in place, unless they differ
// otherwise, and status says so.
func TestJumpsLeftBehindCountAsInPlace(t *testing.T) {
	tab := xtables.NewTable()
	tab.Policies["FORWARD"], tab.Jumps["FORWARD"] = "ACCEPT", []string{"-j SVCP-FORWARD"}
	tab.Ahead["FORWARD"] = []string{"-o vs -j DROP"}
	want := []string{"-j SVCP-FORWARD"}
	var o order
	warns := func(text string) {
		t.Helper()
		if got := strings.Join(o.warnings("iptables-nft"), "\n"); (text == "") != (got == "") || !strings.Contains(got, text) {
			t.Errorf("warnings: %q, want %q", got, text)
		}
	}
	for range moveLimit {
		o.observe("filter", tab)
		if o.inPlace(tab, forward, want) {
			t.Fatal("in place behind a rule that drops")
		}
		o.moved(forward, tab.Ahead["FORWARD"])
		warns(`iptables-nft filter FORWARD: svcproxy's rules were moved before "-o vs -j DROP"`)
	}
	o.observe("filter", tab)
	warns("another program keeps putting rules before svcproxy's")
	if !o.inPlace(tab, forward, want) || o.due() {
		t.Error("moved again at once")
	}
	if o.inPlace(tab, forward, append(want, "-j SVCP-OTHER")) {
		t.Error("a missing jump counts as in place")
	}
	o.places[forward].until = time.Now().Add(-time.Second)
	if o.inPlace(tab, forward, want) || !o.due() {
		t.Error("not moved after the pause")
	}
	delete(tab.Ahead, "FORWARD")
	o.observe("filter", tab)
	if o.due() {
		t.Error("due although nothing is in front")
	}
	o.places[forward].last = time.Now().Add(-movesShown)
	warns("")
	tab.AheadOfUser["FORWARD"] = []string{"-j FIRST"}
	o.observe("filter", tab)
	warns(`rules before the jump to DOCKER-USER, which svcproxy's stay behind, may stop services: "-j FIRST"`)
}
