//go:build netns

package lab

import (
	"errors"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"time"
)

// A group is a number of cases under the same settings. It has a lab and a
// daemon of its own, which all its cases use, one after the other.
type group struct {
	name     string
	settings string // beside mode and node_name
	cases    []testCase
	damaging bool // others lose their kernel objects too
	exact    bool // what services have given up must go, in ipvs mode too
	drops    bool // the policy of FORWARD is DROP

	except []string // modes that refuse the settings, or have nothing to do with the cases
}

// A testCase is one row of what svcproxy promises. It works with addresses of
// its own, in a file of its own.
type testCase struct {
	name   string
	run    func(t *testing.T, e *env)
	except []string // modes that cannot do this, as docs/packets.md says
}

var groups = slices.Concat(addressGroups, nodePortGroups, firewallGroups, strayGroups, loopGroups, serviceGroups, policyGroups, masqueradeGroups, affinityGroups, floodGroups, flowGroups, samePortGroups, upheavalGroups, heldGroups, rollingGroups,
	fileGroups, limitGroups, rewriteGroups, restartGroups, modeChangeGroups, faultGroups, trafficGroups, traceGroups, explainGroups, healthGroups, largeGroups)

func TestCases(t *testing.T) {
	for _, m := range modes {
		t.Run(m.String(), func(t *testing.T) {
			t.Parallel()
			for _, g := range groups {
				if slices.Contains(g.except, m.name) {
					continue
				}
				t.Run(g.name, func(t *testing.T) {
					t.Parallel()
					g.run(t, m)
				})
			}
		})
	}
}

// run runs the cases of a group, and checks throughout that what others have in the kernel stays.
func (g group) run(t *testing.T, m mode) {
	e := &env{Lab: newLab(t), mode: m}
	if err := m.prepare(e.Node); err != nil {
		t.Fatal(err)
	}
	if g.drops {
		if err := setForwardPolicy(e.Node, m.variant, "DROP"); err != nil {
			t.Fatal(err)
		}
	}
	before, _, err := Snapshot(e.Node)
	if err != nil {
		t.Fatal(err)
	}
	e.foreignStays = func(t *testing.T) {
		if err := Unchanged(e.Node, before); err != nil && !g.damaging {
			t.Error(err)
		}
	}
	e.daemon = newDaemon(t, e.Lab, m)
	e.settings = "mode = \"" + m.name + "\"\nnode_name = \"node\"\n" + g.settings
	if g.exact && m.name == "ipvs" {
		e.settings += giveUpSoon
	}
	if err := errors.Join(e.daemon.Settings(e.settings), e.daemon.Start()); err != nil {
		t.Fatalf("%v\n%s", err, e.daemon.LogTail(logLines))
	}
	for i, c := range g.cases {
		e.number = byte(i + 1)
		if slices.Contains(c.except, m.name) {
			continue
		}
		t.Run(c.name, func(t *testing.T) { e.runCase(t, c) })
	}
	e.cleanup(t)
}

// giveUpSoon lets servers go in ipvs mode, and their addresses, whatever
// connections they have. Others make it longer, at most to givenUpAfter.
const (
	giveUpSoon   = "[sync]\nresync_interval = \"1s\"\n[ipvs]\ndrain_timeout = \"1s\"\n"
	givenUpAfter = 4 * time.Second
)

// logLines is how much of the daemon's log a failed case shows.
const logLines = 30

// newDaemon prepares a daemon that ends with the test.
func newDaemon(t *testing.T, l *Lab, m mode) *Daemon {
	t.Helper()
	binary, err := svcproxyBinary()
	if err != nil {
		t.Fatal(err)
	}
	d, err := NewDaemon(l, binary)
	if err != nil {
		t.Fatal(err)
	}
	d.Steps = m.name == "ipvs"
	t.Cleanup(func() {
		if err := d.Remove(); err != nil {
			t.Error(err)
		}
	})
	return d
}

func (e *env) runCase(t *testing.T, c testCase) {
	t.Cleanup(func() {
		if err := e.daemon.RemoveFile(e.name() + ".json"); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("the end of svcproxy's log:\n%s", e.daemon.LogTail(logLines))
			if err := errors.Join(e.daemon.Kill(), e.daemon.Start()); err != nil { // for the cases that follow
				t.Error(err)
			}
		}
	})
	t.Cleanup(func() { e.foreignStays(t) }) // after the clean-up of the case itself
	c.run(t, e)
}

// cleanup ends the daemon and checks that the cleanup command removes all of ours and nothing else.
func (e *env) cleanup(t *testing.T) {
	_, own, err := Snapshot(e.Node)
	if err != nil {
		t.Error(err)
	}
	for _, line := range own {
		if e.mode.alien != "" && strings.Contains(line, e.mode.alien) {
			t.Errorf("mode %s made %q", e.mode, line)
		}
	}
	if err := e.daemon.Stop(); err != nil {
		t.Error(err)
	}
	if _, err := e.daemon.Command("cleanup"); err != nil {
		t.Error(err)
	}
	if _, own, err = Snapshot(e.Node); err != nil || len(own) > 0 {
		t.Errorf("after cleanup: error %v, left %q", err, own)
	}
	e.foreignStays(t)
}
