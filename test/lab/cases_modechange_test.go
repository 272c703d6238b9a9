//go:build netns

package lab

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/source"
)

var modeChangeGroups = []group{{
	name:   "mode change",
	cases:  []testCase{{name: "traffic goes on", run: changeTo("nftables")}},
	except: []string{"nftables", "ipvs"}, // the other modes change to these and back
}}

func changeTo(other string) func(*testing.T, *env) {
	return func(t *testing.T, e *env) { testModeChange(t, e, other) }
}

// marks are what tells objects of a mode in a Snapshot.
var marks = map[string]string{"iptables": "SVCP-VIPS", "ipvs": "SVCP-BOUND", "nftables": "table ip svcproxy:"}

// testModeChange: established connections and new ones see nothing of a change of
// mode, while running or over a restart, and it leaves nothing behind.
func testModeChange(t *testing.T, e *env, other string) {
	e.apply(t, e.everywhere(at(e.Local[0], e.Local[1], e.Remote[0])...))
	_, first, err := Snapshot(e.Node)
	if err != nil {
		t.Fatal(err)
	}
	conns := e.establish(t)
	flow, err := NewFlow(Question{From: e.Client, Protocol: source.UDP, To: netip.AddrPortFrom(e.vip(1).V4, 80)}, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer flow.Close()
	flowEndpoint := flow.Ask().By

	stop := e.stream(t)
	defer stop()
	running := func(mode string) error { return e.daemon.Settings(e.inMode(mode)) }
	changes := []struct {
		name, from, to string
		do             func(mode string) error
	}{
		{"while running", e.mode.name, other, running},
		{"back while running", other, e.mode.name, running},
		{"over a restart", e.mode.name, other, func(mode string) error {
			return errors.Join(e.daemon.Stop(), running(mode), e.daemon.Start())
		}},
		{"back after a kill", other, e.mode.name, func(mode string) error {
			return errors.Join(e.daemon.Kill(), running(mode), e.daemon.Start())
		}},
		{"back and forth", e.mode.name, e.mode.name, func(mode string) error {
			return errors.Join(running(other), e.becomes(e.mode.name, other), running(mode))
		}},
	}
	if slowness > 1 {
		changes = changes[:4] // each takes minutes
	}
	for _, c := range changes {
		if err := errors.Join(c.do(c.to), echo(conns), e.becomes(c.from, c.to), echo(conns)); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if got := flow.Ask(); got.By != flowEndpoint && e.mode.name != "ipvs" { // IPVS lets flows go with their server
			t.Errorf("%s: UDP flow %s, want an answer by %s as before", c.name, got, flowEndpoint)
		}
		e.expect(t, e.everyAddress(e.Client, by(e.Local[0], e.Local[1], e.Remote[0]).masked())...)
		e.foreignStays(t)
	}
	if err := pace.Poll(expectPatience, func() error { return e.whole(first) }); err != nil {
		t.Errorf("back in the first mode: %v", err)
	}
}

// inMode returns the settings with another mode.
func (e *env) inMode(mode string) string {
	return strings.Replace(e.settings, e.mode.name, mode, 1)
}

// becomes waits until the kernel holds what mode to makes, and nothing of mode from.
func (e *env) becomes(from, to string) error {
	if marks[from] == "" || marks[to] == "" {
		return fmt.Errorf("nothing tells objects of %s or %s mode", from, to)
	}
	return pace.Poll(6*expectPatience, func() error {
		_, own, err := Snapshot(e.Node)
		if err != nil {
			return err
		}
		text := strings.Join(own, "\n")
		if from != to && strings.Contains(text, marks[from]) || !strings.Contains(text, marks[to]) {
			return fmt.Errorf("no change from %s to %s: the kernel holds\n%s", from, to, text)
		}
		return nil
	})
}
