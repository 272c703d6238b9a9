package changes

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"svcproxy.dev/svcproxy/cmd/internal/announcer"
	"svcproxy.dev/svcproxy/proxier/claims"
	"svcproxy.dev/svcproxy/proxier/loop"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/policy/policytest"
	"svcproxy.dev/svcproxy/proxier/report"
	"svcproxy.dev/svcproxy/source"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pass updates the Tracker with these objects, each written as "NAME STATE".
func (c *Tracker) pass(states ...string) {
	c.at = time.Time{}
	c.update(func(visit func(report.Object, string, func() string)) {
		for _, s := range states {
			name, state, _ := strings.Cut(s, " ")
			visit(report.Object{Kind: "k", Name: name}, state, func() string { return "why " + name })
		}
	})
}

// text returns changes as "name was>state (reason)".
func text(list []Change) string {
	var all []string
	for _, ch := range list {
		s := fmt.Sprintf("%s %s>%s", ch.Name, ch.Was, ch.State)
		if ch.Reason != "" {
			s += " (" + ch.Reason + ")"
		}
		all = append(all, s)
	}
	return strings.Join(all, ", ")
}

// A client gets the last state of each object that changed since its position, once.
func TestChanges(t *testing.T) {
	var c Tracker
	expect := func(seen uint64, want string) {
		t.Helper()
		if got := text(c.Since(&Cursor{Number: seen}, 100)); got != want {
			t.Errorf("since %d: %s, want %s", seen, got, want)
		}
	}
	c.pass("a up", "b up", "a down") // of two objects with the same name, the first is used
	begin, from, _ := c.Position()
	expect(0, "a >up, b >up")
	expect(begin, "")
	c.pass("a down", "b up")
	seen, _, _ := c.Position()
	expect(begin, "a up>down (why a)")
	c.pass("a checking", "b up")
	c.pass("a up", "c new")
	expect(begin, "a checking>up (why a), c >new (why c), b up>")
	expect(seen, "a checking>up (why a), c >new (why c), b up>")
	c.pass("a up", "c new")
	if last, _, _ := c.Position(); len(c.Since(&Cursor{Number: last}, 100)) > 0 {
		t.Error("an unchanged object has a change")
	}
	if got := text(c.Since(&Cursor{Number: begin}, 2)); got != "a checking>up (why a), c >new (why c)" {
		t.Errorf("the first two: %s", got)
	}
	c.pass("a up", "c new", "b up")
	expect(seen, "a checking>up (why a), c >new (why c), b >up (why b)")
	if _, now, _ := c.Position(); now != from || c.gone != 0 {
		t.Errorf("from %d, was %d; %d gone", now, from, c.gone)
	}
	c.clear()
	c.pass("a up")
	if _, from, _ := c.Position(); from <= begin {
		t.Errorf("a client at %d could continue, from %d", begin, from)
	}
}

// A client that keeps reading gets the same as a client that reconnects, whatever changes meanwhile.
func TestCursor(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var c Tracker
		var seen Cursor
		for range rapid.IntRange(1, 20).Draw(t, "passes") {
			var states []string
			for i := range 6 {
				if state := rapid.SampledFrom([]string{"", "up", "down"}).Draw(t, "state"); state != "" {
					states = append(states, fmt.Sprintf("n%d %s", i, state))
				}
			}
			c.pass(states...)
			for range rapid.IntRange(0, 3).Draw(t, "reads") {
				back := Cursor{Number: seen.Number}
				if got, want := text(c.Since(&seen, 2)), text(c.Since(&back, 2)); got != want || seen.Number != back.Number {
					t.Fatalf("read on: %s, came back: %s", got, want)
				}
			}
		}
	})
}

// A bounded number of gone objects is remembered. A client that has missed more must read everything.
func TestChangesForgetWhatIsGone(t *testing.T) {
	var c Tracker
	names := make([]string, maxGone+10)
	for i := range names {
		names[i] = fmt.Sprintf("n%d up", i)
	}
	c.pass(names...)
	seen, _, _ := c.Position()
	c.pass("n0 up")
	last, from, _ := c.Position()
	if c.gone != maxGone || len(c.objects) != maxGone+1 || from <= seen || len(c.Since(&Cursor{Number: from}, 2*maxGone)) != maxGone {
		t.Errorf("%d gone, %d known, from %d of %d to %d", c.gone, len(c.objects), from, seen, last)
	}
	oldest := Cursor{Number: from}
	c.Since(&oldest, 1)
	c.pass() // it is forgotten
	if list := c.Since(&oldest, 2*maxGone); len(list) != maxGone {
		t.Errorf("%d changes after a forgotten one", len(list))
	}
}

// Changes are kept while there are watchers, and forgotten some time after the last one has left.
func TestTrackerForgets(t *testing.T) {
	c := New(Config{})
	c.Join()
	c.Join()
	c.pass("a up")
	c.Leave()
	if c.forget(); c.objects == nil || c.end != nil {
		t.Error("changes are forgotten although there is a watcher")
	}
	c.Leave()
	if c.forget(); c.objects != nil || c.end == nil {
		t.Error("changes are kept although there is no watcher")
	}
	c.Join()
	if c.end != nil {
		t.Error("changes will be forgotten although a watcher is back")
	}
}

// The states of routers, the mode, the host and repairs are tracked too.
func TestStates(t *testing.T) {
	s := &report.Snapshot{Snapshot: claims.Snapshot{Node: policytest.Node()}, Syncs: []report.Family{{Family: policy.IPv4}, {Family: policy.IPv6}}}
	sessions := []announcer.Session{{Peer: netip.MustParseAddr("192.0.2.1"), State: "active", LastError: "refused"}}
	files := []source.Status{{
		Files: []source.FileStatus{{Path: "a.toml", State: source.Accepted}}, Objects: []source.FileStatus{{Path: "default/web", State: source.Stale}},
	}}
	mode := "nftables"
	c := New(Config{
		Snapshot: func() *report.Snapshot { return s }, Sources: func() []source.Status { return files },
		Sessions: func() []announcer.Session { return sessions }, Mode: func() (name, why string) { return mode, "it is set" },
	})
	seen := uint64(0)
	expect := func(want string) {
		t.Helper()
		c.at = time.Time{}
		c.Update()
		var got []string
		for _, ch := range c.Since(&Cursor{Number: seen}, 100) {
			got = append(got, strings.TrimSpace(fmt.Sprintf("%s %s %s>%s %s", ch.Kind, ch.Name, ch.Was, ch.State, ch.Reason)))
		}
		if text := strings.Join(got, "; "); text != want {
			t.Errorf("%s; want %s", text, want)
		}
		seen, _, _ = c.Position()
	}
	expect("file a.toml >accepted; file default/web >stale; bgp 192.0.2.1 >down; mode mode >nftables; host here >in use; repairs IPv4 >0; repairs IPv6 >0")
	sessions[0].State = "connect" // it still tries
	expect("")
	sessions[0].State = announcer.Established
	files[0].Files[0] = source.FileStatus{Path: "a.toml", State: source.Refused, Faults: []source.Fault{{Msg: "no"}}}
	mode = "ipvs"
	s.Drained = true
	c.Repaired(loop.SyncResult{Family: policy.IPv6, Repairs: []loop.RepairCause{loop.Foreign, loop.Difference}})
	c.Repaired(loop.SyncResult{Family: policy.IPv6, Repairs: []loop.RepairCause{loop.Foreign}})
	c.Repaired(loop.SyncResult{Family: policy.IPv4, Repairs: []loop.RepairCause{loop.Foreign}, Err: errors.New("no")})
	expect("file a.toml accepted>refused no; bgp 192.0.2.1 down>established; mode mode nftables>ipvs it is set; host here in use>drained; repairs IPv6 0>2 foreign")
	sessions = nil
	expect("bgp 192.0.2.1 established>")
	if got := c.In(ModeObject, "ipvs"); len(got) != 1 || got[0].Name != ModeObject {
		t.Errorf("in ipvs mode: %v", got)
	}
}
