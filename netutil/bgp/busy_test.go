package bgp_test

import (
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	packet "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"svcproxy.dev/svcproxy/netutil/bgp"
)

// Routes change while sessions come up, and sessions are opened again because of it: each router ends with the
// routes of the last set.
func TestChangesWhileOpening(t *testing.T) {
	const n = 30
	tables := make([]*table, n)
	peers := make([]bgp.Peer, n)
	for i := range n {
		r := newRouterAt(t, netip.AddrFrom4([4]byte{127, 0, 1, byte(1 + i)}))
		tables[i], peers[i] = r.keepTable(), r.peer()
	}
	cfg := config(peers...)
	cfg.HoldTime = time.Hour // these routers send no keepalives
	s := run(t, cfg)
	set(t, s)
	stop := changeUntil(t, s)
	end := time.Now().Add(wait())
	for i := range n {
		for tables[i].empty() && time.Now().Before(end) {
			time.Sleep(time.Millisecond)
		}
	}
	stop()
	set(t, s, route("192.0.2.1/32"))
	for i := range n {
		for !tables[i].is("192.0.2.1/32") {
			if time.Now().After(end) {
				t.Fatalf("router %d has %v; want one route", i, tables[i].list())
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
}

// changeUntil sets other routes all the time, until the function it returns is called.
func changeUntil(t *testing.T, s *bgp.Speaker) (stop func()) {
	quit, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for k := 0; ; k++ {
			select {
			case <-quit:
				return
			case <-time.After(time.Millisecond):
			}
			if err := s.SetRoutes([]bgp.Route{route(fmt.Sprintf("198.51.100.%d/32", k%250))}); err != nil {
				t.Error(err)
			}
		}
	}()
	return func() { close(quit); <-ended }
}

// A table is what a router was told in the present session.
type table struct {
	sync.Mutex
	routes map[string]bool
}

// keepTable agrees to each session, one after the other, until the test ends.
func (r *router) keepTable() *table {
	tb := &table{}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := r.ln.Accept()
			if err != nil {
				return
			}
			r.t.Cleanup(func() { c.Close() })
			tb.session(r, c)
		}
	})
	r.t.Cleanup(func() { r.ln.Close(); wg.Wait() })
	return tb
}

func (tb *table) session(r *router, c io.ReadWriter) {
	tb.Lock()
	tb.routes = map[string]bool{}
	tb.Unlock()
	for _, m := range []*packet.BGPMessage{r.ourOpen(), packet.NewBGPKeepAliveMessage()} {
		if b, err := m.Serialize(); err != nil {
			r.t.Error(err)
		} else if _, err := c.Write(b); err != nil {
			return
		}
	}
	for {
		m, err := read(c)
		if err != nil {
			return
		}
		if u, ok := m.Body.(*packet.BGPUpdate); ok {
			tb.apply(u)
		}
	}
}

func (tb *table) apply(u *packet.BGPUpdate) {
	tb.Lock()
	defer tb.Unlock()
	for _, w := range u.WithdrawnRoutes {
		delete(tb.routes, w.NLRI.String())
	}
	for _, a := range u.NLRI {
		tb.routes[a.NLRI.String()] = true
	}
}

func (tb *table) list() []string {
	tb.Lock()
	defer tb.Unlock()
	return slices.Sorted(maps.Keys(tb.routes))
}

func (tb *table) empty() bool { return len(tb.list()) == 0 }

func (tb *table) is(prefix string) bool { return slices.Equal(tb.list(), []string{prefix}) }
