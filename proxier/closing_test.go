package proxier

import (
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"svcproxy.dev/svcproxy/source"
)

func closing(c source.CloseConnections) func(*source.Service) {
	return func(s *source.Service) { s.CloseConnections = c }
}

func overUDP(s *source.Service) { s.Ports[0].Protocol = source.UDP }

// Which endpoints without new connections keep those that they have, and which do not.
func TestResolveClosed(t *testing.T) {
	type edits = []func(*source.Service)
	one, two, three := "10.0.0.1", "10.0.0.2", "10.0.0.3"
	never, failing, always := closing(source.CloseNever), closing(source.CloseFailed), closing(source.CloseAlways)
	tests := []struct {
		name  string
		svc   edits
		known Conditions
		want  string // kept, then closed
	}{
		{"never", edits{probed, never, testEndpoints(one, two)}, conditions(one+" failed", two+" passed"), "[10.0.0.1] []"},
		{"failed", edits{probed, failing, testEndpoints(one, two)}, conditions(one+" failed", two+" passed"), "[] [10.0.0.1]"},
		{"always", edits{probed, always, testEndpoints(one, two)}, conditions(one+" failed", two+" passed"), "[] [10.0.0.1]"},
		{"failed only now", edits{probed, always, testEndpoints(one, two)}, conditions(one+" failing", two+" passed"), "[10.0.0.1] []"},
		{"UDP flows of one that failed only now", edits{overUDP, probed, never, testEndpoints(one, two)}, conditions(one+" failing", two+" passed"), "[] [10.0.0.1]"},
		{"UDP flows where all fail", edits{overUDP, probed, never, testEndpoints(one, two)}, conditions(one+" failing", two+" failing"), "[] []"},
		{"UDP flows where all fail, of one that is drained", edits{overUDP, probed, never, testEndpoints(one, two)}, conditions(one+" failed drained", two+" failing"), "[10.0.0.1] []"},
		{"UDP flows where all fail, refuse", edits{overUDP, probedRefuse, never, testEndpoints(one, two)}, conditions(one+" failing", two+" failing"), "[] [10.0.0.1 10.0.0.2]"},
		{"UDP flows of one that may follow", edits{overUDP, probed, never, testEndpoints(one, two)}, conditions(one+" failing returning", two+" passed returning"), "[] []"},
		{"UDP flows of one that failed before others that may follow", edits{overUDP, probed, never, testEndpoints(one, two, three)}, conditions(one+" failing returning", two+" passed returning", three+" failing"), "[] [10.0.0.3]"},
		{"one may follow", edits{probed, always, testEndpoints(one, two)}, conditions(one+" failed returning", two+" passed returning"), "[] []"},
		{"one may follow that is drained, or failed before", edits{probed, always, testEndpoints(one, two, three, "10.0.0.4")}, conditions(one+" failed returning", two+" passed returning", three+" failed drained", "10.0.0.4 failed"), "[10.0.0.3 10.0.0.4] []"},
		{"UDP flows of one that may follow, as a backup", edits{overUDP, probed, never, testEndpoints(one, two+" tier=1")}, conditions(one+" passed returning", two+" failed returning"), "[10.0.0.2] []"},
		{"one may follow, as a backup", edits{probed, always, testEndpoints(one, two+" tier=1")}, conditions(one+" passed returning", two+" failed returning"), "[10.0.0.2] []"},
		{"no result yet", edits{probed, always, testEndpoints(one, two)}, conditions(two + " passed"), "[10.0.0.1] []"},
		{"all fail, and are used", edits{probed, always, testEndpoints(one, two)}, conditions(one+" failed", two+" failed"), "[] []"},
		{"all fail, and those of a tier are used", edits{probed, always, testEndpoints(one, two+" tier=1")}, conditions(one+" failed", two+" failed"), "[10.0.0.2] []"},
		{"all fail, refuse", edits{probedRefuse, failing, testEndpoints(one, two)}, conditions(one+" failed", two+" failed"), "[] [10.0.0.1 10.0.0.2]"},
		{"fails and is drained", edits{probed, failing, testEndpoints(one, two)}, conditions(one+" failed drained", two+" passed"), "[] [10.0.0.1]"},
		{"fails and is disabled", edits{probed, failing, testEndpoints(one+" disabled", two)}, conditions(one+" failed", two+" passed"), "[] [10.0.0.1]"},
		{"failed without a check", edits{always, testEndpoints(one+" weight=0", two)}, conditions(one + " failed"), "[10.0.0.1] []"},
		{"drained", edits{always, testEndpoints(one, two)}, conditions(one + " drained"), "[10.0.0.1] []"},
		{"drained for too long", edits{always, testEndpoints(one, two)}, conditions(one + " drained overdue"), "[] [10.0.0.1]"},
		{"drained for too long, failed", edits{failing, testEndpoints(one, two)}, conditions(one + " drained overdue"), "[10.0.0.1] []"},
		{"no longer drained", edits{always, testEndpoints(one+" weight=0", two)}, conditions(one + " overdue"), "[10.0.0.1] []"},
		{"weight 0, disabled, backup", edits{always, testEndpoints(one, two+" weight=0", three+" disabled", "10.0.0.4 tier=1")}, nil, "[10.0.0.2 10.0.0.3 10.0.0.4] []"},
		{"UDP flows of an endpoint that fails", edits{overUDP, probed, never, testEndpoints(one, two)}, conditions(one+" failed", two+" passed"), "[] [10.0.0.1]"},
		{"UDP flows of one that is drained for too long", edits{overUDP, never, testEndpoints(one, two)}, conditions(one + " drained overdue"), "[10.0.0.1] []"},
	}
	for _, tt := range tests {
		pool := Resolve(testService(tt.svc...), tt.known, testNode(), IPv4).Pools[0]
		if got := strings.ReplaceAll(fmt.Sprint(pool.Kept, pool.Closed), ":8080", ""); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}

// A change says whose connections are closed, and where clients sent them.
func TestCloser(t *testing.T) {
	const vip, nodePort = "10.96.0.10:80", "192.0.2.1:30080"
	one, two, three := "10.0.0.1", "10.0.0.2", "10.0.0.3"
	web := func(c source.CloseConnections, endpoints ...string) *source.Service {
		s := testService(probed, closing(c), testEndpoints(endpoints...))
		s.Ports[0].NodePort = 30080
		return s
	}
	other := web(source.CloseNever, one, two)
	other.Name = "other"
	up, fails := conditions(one+" passed", two+" passed", three+" passed"), conditions(one+" failed", two+" passed")
	both := []string{vip + " " + one, nodePort + " " + one}
	tests := []struct {
		name      string
		old, new  *source.Service
		was, now  Conditions
		all       bool
		want      []string
		waiting   []string // of these, only what was not answered yet
		takenOver bool     // the frontends of old move to the service other
	}{
		{name: "nothing", old: web(source.CloseAlways, one, two), new: web(source.CloseAlways, one, two), was: up, now: up},
		{name: "fails", old: web(source.CloseFailed, one, two), new: web(source.CloseFailed, one, two), was: up, now: fails, want: both},
		{name: "fails, never", old: web(source.CloseNever, one, two), new: web(source.CloseNever, one, two), was: up, now: fails, waiting: both},
		{name: "failed already, never", old: web(source.CloseNever, one, two), new: web(source.CloseNever, one, two, three), was: fails, now: fails},
		{name: "failed when svcproxy starts, never", new: web(source.CloseNever, one, two), now: fails, waiting: both},
		{name: "back again, never", old: web(source.CloseNever, one, two), new: web(source.CloseNever, one, two), was: fails, now: up},
		{name: "fails, and is used", old: web(source.CloseNever, one), new: web(source.CloseNever, one), was: up, now: fails},
		{name: "failed already", old: web(source.CloseFailed, one, two), new: web(source.CloseFailed, one, two, three), was: fails, now: fails},
		{name: "failed already, and the kernel may have held anything", old: web(source.CloseFailed, one, two), new: web(source.CloseFailed, one, two), was: fails, now: fails, all: true, want: both},
		{name: "failed when svcproxy starts", new: web(source.CloseFailed, one, two), now: fails, want: both},
		{name: "failed, and now it is to be closed", old: web(source.CloseNever, one, two), new: web(source.CloseFailed, one, two), was: fails, now: fails, want: both},
		{name: "back again", old: web(source.CloseFailed, one, two), new: web(source.CloseFailed, one, two), was: fails, now: up},
		{name: "removed", old: web(source.CloseAlways, one, two), new: web(source.CloseAlways, two), was: up, now: up, want: both},
		{name: "removed, failed", old: web(source.CloseFailed, one, two), new: web(source.CloseFailed, two), was: up, now: up},
		{name: "removed when always begins", old: web(source.CloseNever, one, two), new: web(source.CloseAlways, two), was: up, now: up, want: both},
		{name: "the service goes", old: web(source.CloseAlways, one), was: up, want: both},
		{name: "the service goes, failed", old: web(source.CloseFailed, one), was: up},
		{name: "another service takes over", old: web(source.CloseAlways, one, two, three), was: up, now: up, takenOver: true},
	}
	host := testNode().Host(IPv4)
	for _, tt := range tests {
		resolve := func(s *source.Service, known Conditions) *Resolved {
			if s == nil {
				return nil
			}
			return Resolve(s, known, testNode(), IPv4)
		}
		ch := ServiceChange{Old: resolve(tt.old, tt.was), New: resolve(tt.new, tt.now)}
		changes := map[source.Key]ServiceChange{{Name: "web"}: ch}
		if tt.takenOver {
			changes[other.Key] = ServiceChange{New: resolve(other, tt.now)}
		}
		c := newCloser(source.TCP)
		l := c.synced(&synced{changes: changes, services: map[source.Key]*Resolved{{Name: "web"}: ch.New}, host: host, all: tt.all})
		var got, waiting []string
		q := c.query(l)
		for _, dst := range []string{vip, nodePort, "10.96.0.11:80", "192.0.2.1:80"} {
			for _, reply := range []string{one, two, three} {
				f := Flow{Dst: netip.MustParseAddrPort(dst), Reply: netip.AddrPortFrom(netip.MustParseAddr(reply), 8080)}
				unanswered := f
				unanswered.Unreplied = true
				if c.stale(l, unanswered) && !c.stale(l, f) {
					waiting = append(waiting, dst+" "+reply)
				}
				if c.stale(l, f) {
					got = append(got, dst+" "+reply)
					if !slices.Contains(q.To, f.Dst) || !slices.Contains(q.At, f.Reply) || q.Protocol != source.TCP {
						t.Errorf("%s: %v is not asked for by %v", tt.name, f, q)
					}
				}
			}
		}
		if !slices.Equal(got, tt.want) || !slices.Equal(waiting, tt.waiting) {
			t.Errorf("%s\n got: %v and %v\nwant: %v and %v", tt.name, got, waiting, tt.want, tt.waiting)
		}
		if asks := len(l.changed) > 0; asks != (len(tt.want)+len(tt.waiting) > 0) {
			t.Errorf("%s: it looks at %v", tt.name, l.changed)
		}
	}
}

// What is closed is looked for twice: a connection may have been on its way. An endpoint that
// is back by then, or that another service has there, keeps what it has; nothing is remembered.
func TestCloserLooksTwice(t *testing.T) {
	for _, back := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			track := &tracking{}
			conn := testFlow{"", "10.96.0.10:80", "10.0.0.1:8080"}
			k := &kernel{}
			about := knower{make(chan *source.Service, 9), make(chan Conditions, 9)}
			about.known <- conditions("10.0.0.1 passed", "10.0.0.2 passed")
			var log strings.Builder
			l := start(t, k, func(c *Config) {
				c.Conditions, c.Flows, c.Log = about, track, slog.New(slog.NewTextHandler(&log, nil))
			})
			svc := testService(probed, closing(source.CloseFailed), testEndpoints("10.0.0.1", "10.0.0.2"))
			l.Apply(source.Changes{Set: []source.Unit{{ID: source.UnitID{Source: "file", Name: "a"}, Services: []*source.Service{svc}}}})
			l.Synced("file")
			time.Sleep(time.Minute)
			if n := track.looks(); n != 0 {
				t.Errorf("%d looks where nothing is to be closed", n)
			}
			track.set(func() { track.flows = []testFlow{conn} })
			about.known <- conditions("10.0.0.1 failed", "10.0.0.2 passed")
			l.Reconsider(svc.Key)
			track.expect(t)
			track.set(func() { track.flows = []testFlow{conn} })
			if back {
				about.known <- conditions("10.0.0.1 passed", "10.0.0.2 passed")
				l.Reconsider(svc.Key)
			}
			time.Sleep(time.Minute)
			if back {
				track.expect(t, conn)
			} else {
				track.expect(t)
			}
			if got := strings.Count(log.String(), "closed connections"); got == 0 || back && got != 1 {
				t.Errorf("told %d times:\n%s", got, &log)
			}
			if track.challenged == 0 {
				t.Error("no client was told")
			}
			for _, w := range l.families[0].flows[1:] {
				if n := len(w.judge.(*closer).pending); n != 0 {
					t.Errorf("%d places are remembered of %s", n, w.proto)
				}
			}
		})
	}
}

// A connection that is over is removed as others are, without a word to its client or the log.
func TestEndedIsNotTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		track := &tracking{ended: true, flows: []testFlow{{"", "10.96.0.10:80", "10.0.0.1:8080"}}}
		about := knower{make(chan *source.Service, 9), make(chan Conditions, 9)}
		about.known <- conditions("10.0.0.1 failed", "10.0.0.2 passed")
		var log strings.Builder
		l := start(t, &kernel{}, func(c *Config) {
			c.Conditions, c.Flows, c.Log = about, track, slog.New(slog.NewTextHandler(&log, nil))
		})
		svc := testService(probed, closing(source.CloseFailed), testEndpoints("10.0.0.1", "10.0.0.2"))
		l.Apply(source.Changes{Set: []source.Unit{{ID: source.UnitID{Source: "file", Name: "a"}, Services: []*source.Service{svc}}}})
		l.Synced("file")
		time.Sleep(time.Minute)
		track.expect(t)
		if track.challenged > 0 || strings.Contains(log.String(), "closed connections") {
			t.Errorf("%d clients are told:\n%s", track.challenged, &log)
		}
	})
}

// Where a node port leaves an address, its connections there end like those of a service that goes, and
// no others.
func TestCloserOfAddressesLeft(t *testing.T) {
	node := testNode(func(n *Node) {
		n.Addrs = addrs("192.0.2.1", "192.0.2.2")
		n.UpAddrs = n.Addrs
		n.NodePortAddrs = n.Addrs
	})
	web := func(c source.CloseConnections, list ...string) *Resolved {
		s := testService(closing(c), testEndpoints("10.0.0.1"))
		s.VIPs, s.Ports[0].NodePort = nil, 30080
		if len(list) > 0 {
			s.NodePortAddresses = source.SelectAddresses(list)
		}
		return Resolve(s, nil, node, IPv4)
	}
	for _, tt := range []struct {
		name     string
		old, now *Resolved
		want     string
	}{
		{"always", web(source.CloseAlways, "all"), web(source.CloseAlways, "192.0.2.1/32"), "[192.0.2.2:30080]"},
		{"from the setting", web(source.CloseAlways), web(source.CloseAlways, "192.0.2.1/32"), "[192.0.2.2:30080]"},
		{"never", web(source.CloseNever, "all"), web(source.CloseNever, "192.0.2.1/32"), "[]"},
		{"one more", web(source.CloseAlways, "192.0.2.1/32"), web(source.CloseAlways, "all"), "[]"},
	} {
		c := newCloser(source.TCP)
		l := c.synced(&synced{changes: map[source.Key]ServiceChange{{Name: "web"}: {Old: tt.old, New: tt.now}}, host: node.Host(IPv4)})
		if got := fmt.Sprint(c.query(l).To); got != tt.want {
			t.Errorf("%s: it closes what went to %s, want %s", tt.name, got, tt.want)
		}
	}
}
