package daemon

import (
	"errors"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/cmd/internal/node"
	"svcproxy.dev/svcproxy/netutil/links"
)

// withAddrs replaces how addresses are read until the test ends.
func withAddrs(t *testing.T, list func() ([]links.Addr, error)) {
	old := node.ListAddrs
	node.ListAddrs = list
	t.Cleanup(func() { node.ListAddrs = old })
}

// Addresses that cannot be read for a moment keep nobody from starting.
func TestAddressesAreReadAgainAtStart(t *testing.T) {
	var n atomic.Int32
	withAddrs(t, func() ([]links.Addr, error) {
		if n.Add(1) <= 3 {
			return nil, errors.New("interrupted")
		}
		return links.Addrs()
	})
	launch(t, "http_address = \"\"\n").ready()
}

// What was read later stays, although who read before is slower to tell of it.
func TestLaterAddressesStay(t *testing.T) {
	var now atomic.Pointer[netip.Addr]
	var slow atomic.Bool
	older, later := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	now.Store(&older)
	reading, release := make(chan struct{}), make(chan struct{})
	withAddrs(t, func() ([]links.Addr, error) {
		list := []links.Addr{{Addr: *now.Load(), Interface: "eth0", Index: 2, Up: true, Primary: true}}
		if slow.Swap(false) {
			close(reading)
			<-release
		}
		return list, nil
	})
	f := withCluster(t)
	r := launch(t, "http_address = \"\"\nsources = [\"file\", \"kubernetes\"]\n")
	r.eventually("one address", func() bool { return slices.Equal(r.addresses(), []string{"192.0.2.1"}) })
	var looks sync.WaitGroup
	look := func() { _ = f.h.LookAtAddresses() }
	slow.Store(true)
	looks.Go(look)
	<-reading
	now.Store(&later)
	looks.Go(look)
	time.Sleep(100 * time.Millisecond) // the later one waits, or is done
	close(release)
	looks.Wait()
	if got := r.addresses(); !slices.Equal(got, []string{"192.0.2.2"}) {
		t.Errorf("addresses %v, want the later one", got)
	}
}

// addresses returns the node port addresses; none while nobody answers.
func (r *running) addresses() []string {
	st, err := r.ask()
	if err != nil {
		return nil
	}
	return st.Settings.NodePortAddresses
}
