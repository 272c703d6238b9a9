//go:build netns

package trace

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/netutil/netnstest"
	"svcproxy.dev/svcproxy/netutil/nft"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// own is an address of the host, and no service's.
var own = netip.MustParseAddr("127.0.0.2")

// watch returns a watcher of what goes to own, in a new namespace, and the lines of it.
func watch(t *testing.T, chains bool) (*watcher, *[]Line) {
	t.Helper()
	netnstest.Enter(t)
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	fatal.If(t, err)
	lines := new([]Line)
	w := &watcher{
		Options: Options{
			Filter: Filter{Destination: own}, Names: &Names{Families: []policy.Family{policy.IPv4}}, Chains: chains,
			Line: func(l *Line) error { *lines = append(*lines, *l); return nil },
			Note: func(text string) { t.Error(text) },
		},
		ctx: context.Background(), conn: dial(t), pending: make(map[[2]uint32]*sighting), byID: make(map[uint32]*sighting), asked: time.Now(),
	}
	if w.log, err = nft.OpenPacketLog(firstGroup, snap, chains); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.log.Close() })
	fatal.If(t, w.install())
	return w, lines
}

// send sends one packet to own, from a new port.
func send(t *testing.T) {
	t.Helper()
	c, err := net.Dial("udp4", netip.AddrPortFrom(own, 9999).String())
	if err != nil {
		t.Error(err)
		return
	}
	defer c.Close()
	if _, err := c.Write([]byte("x")); err != nil {
		t.Error(err)
	}
}

// What did not go on is told also while there is always something new.
func TestSteadyTrafficDoesNotDelayReports(t *testing.T) {
	w, lines := watch(t, false)
	if !pace.Within(10*patience, func() bool {
		send(t)
		fatal.If(t, w.receive())
		return len(*lines) > 0
	}) {
		t.Fatal("no line")
	}
}

// A trace ends although events go on, and tells what it knows.
func TestTraceEndsWhileEventsGoOn(t *testing.T) {
	w, lines := watch(t, false)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go netnstest.Here(t, func() {
		defer close(stopped)
		pace.Within(10*finishTime, func() bool {
			send(t)
			select {
			case <-stop:
				return true
			default:
				return false
			}
		})
	})()
	tables := w.tables
	w.tables = nil // as if they were those of another trace
	if err := w.finish(); err != nil {
		t.Error(err)
	}
	select {
	case <-stopped:
		t.Error("it went on for as long as there was traffic")
	default:
	}
	close(stop)
	<-stopped
	if len(*lines) == 0 {
		t.Error("no line")
	}
	w.tables = tables
	if err := w.remove(); err != nil {
		t.Error(err)
	}
}

// One call takes all that waits.
func TestOneCallTakesAllThatWaits(t *testing.T) {
	w, _ := watch(t, false)
	for range 5 {
		send(t)
	}
	drained, err := w.readTick()
	if err != nil || !drained || len(w.pending) != 5 {
		t.Errorf("%d connections, drained %t, error %v; want 5, and no more", len(w.pending), drained, err)
	}
}

// A connection of the host to an address of its own is told once.
func TestOwnAddressIsReportedOnce(t *testing.T) {
	w, lines := watch(t, false)
	send(t)
	if _, err := net.Dial("tcp4", netip.AddrPortFrom(own, 80).String()); err == nil {
		t.Error("connected")
	}
	if err := w.finish(); err != nil {
		t.Error(err)
	}
	var told []string
	for _, l := range *lines {
		told = append(told, l.Destination+" "+l.outcome())
	}
	slices.Sort(told)
	const why = "untouched: not an address of a service"
	if want := []string{"127.0.0.2:80/tcp " + why, "127.0.0.2:9999/udp " + why}; !slices.Equal(told, want) {
		t.Errorf("got  %q\nwant %q", told, want)
	}
}
