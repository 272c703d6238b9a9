//go:build netns

package loop_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/netutil/challenge"
	"svcproxy.dev/svcproxy/netutil/conntrack"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/flows"
	"svcproxy.dev/svcproxy/proxier/iptables"
	"svcproxy.dev/svcproxy/proxier/loop"
	"svcproxy.dev/svcproxy/proxier/nftables"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/test/lab"
)

// A client of an endpoint that left is told so by a reset, when its service says so, even if it only waits; other
// connections go on: those of other services to the same endpoint, and those of the same
// service to others.
func TestCloseConnections(t *testing.T) {
	for _, mode := range []struct {
		name, iptables string
		masquerade     source.Masquerading
	}{
		{"nftables", "", source.MasqueradeAuto},
		{"nftables, client addresses", "", source.MasqueradeNever},
		{"iptables-nft", "iptables-nft", source.MasqueradeAuto},
		{"iptables-legacy, client addresses", "iptables-legacy", source.MasqueradeNever},
	} {
		t.Run(mode.name, func(t *testing.T) {
			t.Parallel()
			newClosingLab(t, mode.iptables, mode.masquerade).run(t)
		})
	}
}

// A closingLab is a Loop that works on the node of a lab.
type closingLab struct {
	*lab.Lab
	loop *loop.Loop

	mu    sync.Mutex
	known map[source.Key]policy.Conditions
}

func newClosingLab(t *testing.T, tool string, masquerade source.Masquerading) *closingLab {
	t.Helper()
	l, err := lab.New()
	fatal.If(t, err)
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	c := &closingLab{Lab: l, known: make(map[source.Key]policy.Conditions)}
	backends := make(map[policy.Family]proxier.Backend)
	for _, fam := range []policy.Family{policy.IPv4, policy.IPv6} {
		backends[fam] = c.backend(t, fam, tool)
	}
	node := &policy.Node{Name: "node", MarkBit: 14, Masquerade: masquerade, ServiceCIDRs: []netip.Prefix{
		netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00:0:96::/48"),
	}}
	for _, d := range l.Node.Addrs {
		node.Addrs = append(node.Addrs, d.Each()...)
	}
	slices.SortFunc(node.Addrs, netip.Addr.Compare)
	c.loop = loop.New(loop.Config{
		Backends: backends, Flows: flows.Config{Tracking: c}, Node: node, Sources: []string{"file"}, Conditions: c,
		LookInterval: time.Hour, SyncTimeout: time.Minute, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { c.loop.Run(ctx) })
	t.Cleanup(func() { cancel(); wg.Wait() })
	return c
}

// backend returns a backend of the node: of iptables, if tool names one, or of nftables.
func (c *closingLab) backend(t *testing.T, fam policy.Family, tool string) (b proxier.Backend) {
	t.Helper()
	err := c.Node.Do(func() (err error) {
		if tool == "" {
			b, err = nftables.New(context.Background(), fam, nftables.Options{})
			return err
		}
		if fam == policy.IPv6 {
			tool = "ip6" + tool[2:]
		}
		if _, err := c.Node.Run(tool, "-w", "-A", "FORWARD", "-j", "ACCEPT"); err != nil { // mode iptables uses the variant that holds rules
			return err
		}
		b, err = iptables.New(context.Background(), fam)
		return err
	})
	fatal.If(t, err)
	return onNode{b, c.Node}
}

// onNode is a backend whose Syncs run in the namespace of the node.
type onNode struct {
	proxier.Backend
	node *lab.Host
}

func (n onNode) Sync(ctx context.Context, st *policy.State, delta *policy.Delta) error {
	return n.node.Do(func() error { return n.Backend.Sync(ctx, st, delta) })
}

// Prune implements flows.Tracking.
func (c *closingLab) Prune(ctx context.Context, fam policy.Family, q flows.Query, judge func(flows.Flow) flows.Verdict) (n int, err error) {
	asked := conntrack.Query{Protocol: uint8(q.Protocol), From: q.From, To: q.To, At: q.At}
	err = c.Node.Do(func() (err error) {
		n, err = conntrack.Prune(ctx, fam == policy.IPv6, asked, func(f conntrack.Flow) conntrack.Verdict { return verdicts[judge(flows.Flow(f))] })
		return err
	})
	return n, err
}

var verdicts = [...]conntrack.Verdict{
	flows.Keep: conntrack.Keep, flows.Remove: conntrack.Remove,
	flows.Move: conntrack.Move, flows.Reopen: conntrack.Reopen,
}

// Challenge implements flows.Tracking.
func (c *closingLab) Challenge(fam policy.Family, removed []flows.Flow) error {
	return c.Node.Do(func() error {
		list := make([]challenge.Connection, len(removed))
		for i, f := range removed {
			list[i] = challenge.Connection{Client: f.Src, Server: f.Dst}
		}
		return challenge.Send(fam == policy.IPv6, list)
	})
}

// Use and Conditions implement loop.Conditioner.
func (c *closingLab) Use(key source.Key, _ *source.Service) policy.Conditions {
	return c.Conditions(key)
}

func (c *closingLab) Conditions(key source.Key) policy.Conditions {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.known[key]
}

// know sets what is known of endpoints of a service; of others on the lab's remotes it is that they pass.
func (c *closingLab) know(svc *source.Service, conditions map[*lab.Host]policy.Condition) {
	known := make(policy.Conditions)
	for i := range svc.Endpoints {
		at := svc.EndpointAt(&svc.Endpoints[i])
		known[at] = policy.Condition{Check: source.CheckPassed}
		for h, cond := range conditions {
			if h.Owns(at.Addr()) {
				known[at] = cond
			}
		}
	}
	c.mu.Lock()
	c.known[svc.Key] = known
	c.mu.Unlock()
	c.loop.Reconsider(svc.Key)
}

// service returns a service with a VIP of each family.
func (c *closingLab) service(name string, n byte, closes source.CloseConnections, on ...*lab.Host) *source.Service {
	s := &source.Service{
		Key:         source.Key{Namespace: "default", Name: name},
		VIPs:        []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 0, n}), netip.AddrFrom16([16]byte{0: 0xfd, 5: 0x96, 15: n})},
		Ports:       []source.Port{{Protocol: source.TCP, Port: 80, TargetPort: 8080}},
		HealthCheck: &source.HealthCheck{Type: source.CheckTCP}, CloseConnections: closes,
	}
	for _, h := range on {
		for _, a := range h.Addr().Each() {
			s.Endpoints = append(s.Endpoints, source.Endpoint{Addr: a, Weight: 1, Ready: true, Serving: true})
		}
	}
	return s
}

// without returns a service without the endpoints of a host.
func without(s *source.Service, h *lab.Host) *source.Service {
	out := *s
	out.Endpoints = slices.DeleteFunc(slices.Clone(s.Endpoints), func(e source.Endpoint) bool { return h.Owns(e.Addr) })
	return &out
}

// apply makes these services those of the only file.
func (c *closingLab) apply(services ...*source.Service) {
	c.loop.Apply(source.Changes{Set: []source.Unit{{ID: source.UnitID{Source: "file", Name: "a"}, Services: services}}})
}

// A held is a connection, and what it leads to.
type held struct {
	*lab.Conn
	service string
	on      string // role of the endpoint's host
	what    string
}

// open opens connections to the services from client and node, some to each endpoint.
func (c *closingLab) open(t *testing.T, services ...*source.Service) (list []held) {
	t.Helper()
	for _, s := range services {
		for _, vip := range s.VIPs {
			for _, from := range []*lab.Host{c.Client, c.Node} {
				list = append(list, c.openTo(t, s, vip, from)...)
			}
		}
	}
	return list
}

func (c *closingLab) openTo(t *testing.T, s *source.Service, vip netip.Addr, from *lab.Host) (list []held) {
	t.Helper()
	q := lab.Question{From: from, Protocol: source.TCP, To: netip.AddrPortFrom(vip, 80)}
	seen := make(map[string]bool)
	for start := time.Now(); len(seen) < len(s.Endpoints)/2; {
		conn, answer := lab.Connect(q)
		if conn == nil {
			if !pace.Over(start, 5*time.Second) {
				continue // it is not synced yet
			}
			t.Fatalf("%s: %s", q, answer)
		}
		t.Cleanup(func() { conn.SetLinger(0); conn.Close() })
		if answer.By == c.Gateway.Role {
			continue // the same
		}
		seen[answer.By] = true
		list = append(list, held{conn, s.Name, answer.By, fmt.Sprintf("%s, %s at %s", s.Name, q, answer.By)})
	}
	return list
}

func isReset(err error) bool { return errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.EPIPE) }

// expectClosed returns the connections that go on, after those for which closed returns true have
// been reset.
func expectClosed(t *testing.T, when string, list []held, closed func(held) bool) (rest []held) {
	t.Helper()
	start, n := time.Now(), 0
	for _, h := range list {
		if !closed(h) {
			rest = append(rest, h)
			continue
		}
		var err error
		if n++; n%2 == 0 { // it only waits
			h.SetReadDeadline(time.Now().Add(pace.Scale(5 * time.Second)))
			_, err = h.Read(make([]byte, 1))
		}
		for begun := time.Now(); !isReset(err) && !errors.Is(err, io.EOF) && !pace.Over(begun, 5*time.Second); {
			err = h.Echo(lab.Patience) // again, if what was under way is lost with the connection
		}
		if !isReset(err) {
			t.Errorf("%s: %s: %v, want a reset", when, h.what, err)
		}
	}
	t.Logf("%s: %d of %d reset within %v", when, n, len(list), time.Since(start))
	if n == 0 {
		t.Errorf("%s: no connection was to be reset", when)
	}
	for _, h := range rest {
		if err := h.Echo(lab.Patience); err != nil {
			t.Errorf("%s: %s: %v", when, h.what, err)
		}
	}
	return rest
}

func (c *closingLab) run(t *testing.T) {
	one, two := c.Remote[0], c.Remote[1]
	fails := map[*lab.Host]policy.Condition{one: {Check: source.CheckFailed, Settled: true}}
	failed, never := c.service("failed", 1, source.CloseFailed, one, two), c.service("never", 2, source.CloseNever, one, two)
	always, only := c.service("always", 3, source.CloseAlways, one, two), c.service("only", 4, source.CloseFailed, one)
	going, all := c.service("going", 5, source.CloseAlways, one), c.service("all", 6, source.CloseFailed, one)
	only.HealthCheck = &source.HealthCheck{Type: source.CheckTCP, Refuse: true}
	services := []*source.Service{failed, never, always, only, going, all}
	c.apply(services...)
	c.loop.Synced("file")
	for _, s := range services {
		c.know(s, nil)
	}
	conns := c.open(t, services...)

	for _, s := range []*source.Service{failed, never, only, all} {
		c.know(s, fails)
	}
	conns = expectClosed(t, "one fails", conns, func(h held) bool {
		return h.on == one.Role && (h.service == "failed" || h.service == "only") // of "all" every endpoint fails, and is used
	})
	c.apply(without(failed, one), without(never, one), without(always, one), only, going, all)
	conns = expectClosed(t, "one is removed", conns, func(h held) bool { return h.on == one.Role && h.service == "always" })
	c.know(without(always, one), map[*lab.Host]policy.Condition{two: {Check: source.CheckPassed, Drained: true, Overdue: true}})
	conns = expectClosed(t, "the other has been drained for too long", conns, func(h held) bool { return h.service == "always" })
	c.apply(only, all)
	conns = expectClosed(t, "services are removed", conns, func(h held) bool { return h.service == "going" })
	if len(conns) == 0 {
		t.Error("no connection has gone on")
	}
}
