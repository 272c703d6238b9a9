//go:build netns

package lab

import (
	"cmp"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/internal/pace"
)

// testMonitor: the kernel tells of a flush, so it is repaired long before the next resync.
func testMonitor(t *testing.T, e *env) {
	e.apply(t, e.everywhere(at(e.Local[0], e.Remote[0])...))
	checks := append(e.everyAddress(e.Client, by(e.Local[0], e.Remote[0]).masked()), check{from: e.Client, to: e.vip(1), port: 81, want: refused})
	e.expect(t, checks...)
	if err := nft(e.Node, "flush ruleset"); err != nil {
		t.Fatal(err)
	}
	if err := pace.Poll(repairPatience, func() error { return e.answers(e.vip(1)) }); err != nil {
		t.Errorf("%v after a flush: %v", repairPatience, err)
	}
	e.expect(t, checks...)
	e.expectLog(t, "another program changed our table; repairing it\" family=ipv4 process=nft pid=")
	e.expectLog(t, "another program changed our table; repairing it\" family=ipv6 process=nft pid=")
}

// testContention: a program that deletes our table as fast as it can is backed
// off from and named by the log and by status. Afterwards all is as before.
func testContention(t *testing.T, e *env) {
	e.apply(t, e.everywhere(at(e.Local[0])...))
	before, deleted := e.repairs(), 0
	const waits = "another program keeps changing our table; delaying repairs with backoff\" family=ipv4 who=\"process "
	err := pace.Poll(Slow(time.Minute), func() error {
		if err := e.deleteTable(deletions); err != nil {
			return err
		}
		if deleted += deletions; !strings.Contains(e.daemon.LogTail(logLines), waits) {
			return fmt.Errorf("%d deletions, and the log does not say %q", deleted, waits)
		}
		return nil
	})
	if err := cmp.Or(err, e.deleteTable(deletions)); err != nil {
		t.Fatal(err)
	}
	deleted += deletions
	if repairs := e.repairs() - before; repairs >= deleted-deletions {
		t.Errorf("%d deletions and %d repairs: nothing waited", deleted, repairs)
	}
	status, err := e.daemon.Command("status")
	if err != nil || !strings.Contains(status, "(nft) changes what svcproxy has in the kernel: ") {
		t.Errorf("status names nobody: %v\n%s", err, status)
	}
	err = pace.Poll(Slow(time.Minute), func() error { return e.answers(e.vip(1)) }) // the longest wait is 30 s
	if err != nil {
		t.Errorf("after all that: %v", err)
	}
}

// deletions is how often deleteTable deletes the table in the lab.
const deletions = 20

// deleteTable deletes our table n times, in as many transactions of one process.
func (e *env) deleteTable(n int) error {
	_, err := e.Node.RunInput(strings.Repeat("add table ip svcproxy\ndelete table ip svcproxy\n", n), "nft", "-i")
	return err
}

// repairs returns how many repairs the log tells of.
func (e *env) repairs() int {
	return strings.Count(e.daemon.LogTail(math.MaxInt), "another program changed our table; repairing it\" family=ipv4")
}
