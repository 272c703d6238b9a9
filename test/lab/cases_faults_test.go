//go:build netns

package lab

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/internal/pace"
)

var faultGroups = []group{
	{
		name:     "monitor",
		cases:    []testCase{{name: "ruleset flushed", run: testMonitor}, {name: "again and again", run: testContention}, {name: "events lost", run: testLostTable}},
		except:   []string{"iptables", "ipvs"},
		damaging: true,
	},
	{
		name:     "canary",
		cases:    []testCase{{name: "nat flushed", run: testCanary}, {name: "nat flushed while events are lost", run: testLostFlush}},
		except:   []string{"nftables", "ipvs"},
		damaging: true,
	},
}

// canaryPatience is how long nobody may notice a flush: nf_tables tells at once,
// the legacy variant is asked every 5 s; the next resync is 30 s away.
var canaryPatience = Slow(12 * time.Second)

// testCanary: a flush of the rules of iptables mode is noticed long before the next resync.
func testCanary(t *testing.T, e *env) {
	e.apply(t, e.everywhere(at(e.Local[0], e.Remote[0])...))
	checks := e.everyAddress(e.Client, by(e.Local[0], e.Remote[0]).masked())
	e.expect(t, checks...)
	flushed := time.Now()
	if err := restore(e.Node, e.mode.variant, "*nat -F"); err != nil {
		t.Fatal(err)
	}
	if err := pace.Poll(canaryPatience, func() error { return e.answers(e.vip(1)) }); err != nil {
		t.Errorf("%v after a flush: %v", canaryPatience, err)
	}
	t.Logf("answers %v after the flush", time.Since(flushed))
	e.expect(t, checks...)
	if e.mode.variant == "legacy" { // the repair may come before the other family is asked
		e.expectLog(t, "another program changed our rules; repairing them")
		return
	}
	e.expectLog(t, "another program changed our table; repairing it\" family=ipv4 process=iptables")
	e.expectLog(t, "another program changed our table; repairing it\" family=ipv6 process=ip6tables")
}

// testLostFlush: a flush is repaired also where its events are lost among those of others.
func testLostFlush(t *testing.T, e *env) {
	e.apply(t, e.everywhere(at(e.Local[0])...))
	if err := e.loseEvents(func() error { return restore(e.Node, e.mode.variant, "*nat -F") }); err != nil {
		t.Fatal(err)
	}
	if err := pace.Poll(canaryPatience, func() error { return e.answers(e.vip(1)) }); err != nil {
		t.Errorf("%v after a flush: %v", canaryPatience, err)
	}
}

// repairPatience is how long a table may be gone. It takes some 5 ms, but longer
// where the kernel is busy with what others have removed; the next resync is 30 s away.
var repairPatience = Slow(5 * time.Second)

// answers reports whether an endpoint answers on both addresses.
func (e *env) answers(to Dual) error {
	for _, q := range (check{from: e.Client, to: to}).questions() {
		q.Patience = 100 * time.Millisecond
		if got := Ask(q); got.Outcome != Answered {
			return fmt.Errorf("%s: %s", q, got)
		}
	}
	return nil
}

// manyEvents is how many elements make more events than may wait for a monitor.
const manyEvents = 150_000

// loseEvents stops the daemon, makes more events than the kernel queues (ENOBUFS),
// calls do, whose events are lost, and lets the daemon go on.
func (e *env) loseEvents(do func() error) error {
	var script strings.Builder
	script.WriteString("add table inet events\nadd set inet events many { type mark; }\nadd element inet events many { 0")
	for i := range manyEvents {
		fmt.Fprintf(&script, ", %d", i)
	}
	script.WriteString(" }")
	if err := e.daemon.Freeze(); err != nil {
		return err
	}
	return errors.Join(nftEach(e.Node, script.String(), "delete table inet events"), do(), e.daemon.Signal(unix.SIGCONT))
}

// testLostTable: a table that is deleted is repaired also where the events of that are lost.
func testLostTable(t *testing.T, e *env) {
	e.apply(t, e.everywhere(at(e.Local[0])...))
	if err := e.loseEvents(func() error { return nft(e.Node, "delete table ip svcproxy") }); err != nil {
		t.Fatal(err)
	}
	if err := pace.Poll(repairPatience, func() error { return e.answers(e.vip(1)) }); err != nil {
		t.Error(err)
	}
	e.expectLog(t, "kernel events were lost; comparing everything")
}
