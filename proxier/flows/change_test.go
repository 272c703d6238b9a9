package flows

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/policy/policytest"
	"svcproxy.dev/svcproxy/source"
)

func onUDP(s *source.Service) { s.Ports[0].Protocol = source.UDP }

// Which endpoints without new connections keep those that they have, and which do not.
func TestResolveClosed(t *testing.T) {
	type edits = []func(*source.Service)
	one, two, three := "10.0.0.1", "10.0.0.2", "10.0.0.3"
	never, failing, always := policytest.Closing(source.CloseNever), policytest.Closing(source.CloseFailed), policytest.Closing(source.CloseAlways)
	tests := []struct {
		name  string
		svc   edits
		known policy.Conditions
		want  string // kept, then closed
	}{
		{"never", edits{policytest.Probed, never, policytest.Endpoints(one, two)}, policytest.Conditions(one+" failed", two+" passed"), "[10.0.0.1] []"},
		{"failed", edits{policytest.Probed, failing, policytest.Endpoints(one, two)}, policytest.Conditions(one+" failed", two+" passed"), "[] [10.0.0.1]"},
		{"always", edits{policytest.Probed, always, policytest.Endpoints(one, two)}, policytest.Conditions(one+" failed", two+" passed"), "[] [10.0.0.1]"},
		{"failed only now", edits{policytest.Probed, always, policytest.Endpoints(one, two)}, policytest.Conditions(one+" failing", two+" passed"), "[10.0.0.1] []"},
		{"UDP flows of one that failed only now", edits{onUDP, policytest.Probed, never, policytest.Endpoints(one, two)}, policytest.Conditions(one+" failing", two+" passed"), "[] [10.0.0.1]"},
		{"UDP flows where all fail", edits{onUDP, policytest.Probed, never, policytest.Endpoints(one, two)}, policytest.Conditions(one+" failing", two+" failing"), "[] []"},
		{"UDP flows where all fail, of one that is drained", edits{onUDP, policytest.Probed, never, policytest.Endpoints(one, two)}, policytest.Conditions(one+" failed drained", two+" failing"), "[10.0.0.1] []"},
		{"UDP flows where all fail, refuse", edits{onUDP, policytest.ProbedRefuse, never, policytest.Endpoints(one, two)}, policytest.Conditions(one+" failing", two+" failing"), "[] [10.0.0.1 10.0.0.2]"},
		{"UDP flows of one that may follow", edits{onUDP, policytest.Probed, never, policytest.Endpoints(one, two)}, policytest.Conditions(one+" failing returning", two+" passed returning"), "[] []"},
		{"UDP flows of one that failed before others that may follow", edits{onUDP, policytest.Probed, never, policytest.Endpoints(one, two, three)}, policytest.Conditions(one+" failing returning", two+" passed returning", three+" failing"), "[] [10.0.0.3]"},
		{"one may follow", edits{policytest.Probed, always, policytest.Endpoints(one, two)}, policytest.Conditions(one+" failed returning", two+" passed returning"), "[] []"},
		{"one may follow that is drained, or failed before", edits{policytest.Probed, always, policytest.Endpoints(one, two, three, "10.0.0.4")}, policytest.Conditions(one+" failed returning", two+" passed returning", three+" failed drained", "10.0.0.4 failed"), "[10.0.0.3 10.0.0.4] []"},
		{"UDP flows of one that may follow, as a backup", edits{onUDP, policytest.Probed, never, policytest.Endpoints(one, two+" tier=1")}, policytest.Conditions(one+" passed returning", two+" failed returning"), "[10.0.0.2] []"},
		{"one may follow, as a backup", edits{policytest.Probed, always, policytest.Endpoints(one, two+" tier=1")}, policytest.Conditions(one+" passed returning", two+" failed returning"), "[10.0.0.2] []"},
		{"no result yet", edits{policytest.Probed, always, policytest.Endpoints(one, two)}, policytest.Conditions(two + " passed"), "[10.0.0.1] []"},
		{"all fail, and are used", edits{policytest.Probed, always, policytest.Endpoints(one, two)}, policytest.Conditions(one+" failed", two+" failed"), "[] []"},
		{"all fail, and those of a tier are used", edits{policytest.Probed, always, policytest.Endpoints(one, two+" tier=1")}, policytest.Conditions(one+" failed", two+" failed"), "[10.0.0.2] []"},
		{"all fail, refuse", edits{policytest.ProbedRefuse, failing, policytest.Endpoints(one, two)}, policytest.Conditions(one+" failed", two+" failed"), "[] [10.0.0.1 10.0.0.2]"},
		{"fails and is drained", edits{policytest.Probed, failing, policytest.Endpoints(one, two)}, policytest.Conditions(one+" failed drained", two+" passed"), "[] [10.0.0.1]"},
		{"fails and is disabled", edits{policytest.Probed, failing, policytest.Endpoints(one+" disabled", two)}, policytest.Conditions(one+" failed", two+" passed"), "[] [10.0.0.1]"},
		{"failed without a check", edits{always, policytest.Endpoints(one+" weight=0", two)}, policytest.Conditions(one + " failed"), "[10.0.0.1] []"},
		{"drained", edits{always, policytest.Endpoints(one, two)}, policytest.Conditions(one + " drained"), "[10.0.0.1] []"},
		{"drained for too long", edits{always, policytest.Endpoints(one, two)}, policytest.Conditions(one + " drained overdue"), "[] [10.0.0.1]"},
		{"drained for too long, failed", edits{failing, policytest.Endpoints(one, two)}, policytest.Conditions(one + " drained overdue"), "[10.0.0.1] []"},
		{"no longer drained", edits{always, policytest.Endpoints(one+" weight=0", two)}, policytest.Conditions(one + " overdue"), "[10.0.0.1] []"},
		{"weight 0, disabled, backup", edits{always, policytest.Endpoints(one, two+" weight=0", three+" disabled", "10.0.0.4 tier=1")}, nil, "[10.0.0.2 10.0.0.3 10.0.0.4] []"},
		{"UDP flows of an endpoint that fails", edits{onUDP, policytest.Probed, never, policytest.Endpoints(one, two)}, policytest.Conditions(one+" failed", two+" passed"), "[] [10.0.0.1]"},
		{"UDP flows of one that is drained for too long", edits{onUDP, never, policytest.Endpoints(one, two)}, policytest.Conditions(one + " drained overdue"), "[] [10.0.0.1]"},
	}
	for _, tt := range tests {
		pool := policy.Resolve(policytest.Service(tt.svc...), tt.known, policytest.Node(), policy.IPv4).Pools[0]
		if got := strings.ReplaceAll(fmt.Sprint(pool.Kept, pool.Closed), ":8080", ""); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}

// A change says whose connections are closed, and whose go on, until the client connects again; and it asks for
// all of them, and for no others.
func TestStaleConnections(t *testing.T) {
	const vip, nodePort = "10.96.0.10:80", "192.0.2.1:30080"
	one, two, three := "10.0.0.1", "10.0.0.2", "10.0.0.3"
	web := func(c source.CloseConnections, endpoints ...string) *source.Service {
		s := policytest.Service(policytest.Probed, policytest.Closing(c), policytest.Endpoints(endpoints...))
		s.Ports[0].NodePort = 30080
		return s
	}
	admits := func(s *source.Service, prefix string) *source.Service {
		s.SourceRanges = []netip.Prefix{netip.MustParsePrefix(prefix)}
		return s
	}
	other := web(source.CloseNever, one, two)
	other.Name = "other"
	up, fails := policytest.Conditions(one+" passed", two+" passed", three+" passed"), policytest.Conditions(one+" failed", two+" passed")
	never, failed, always := source.CloseNever, source.CloseFailed, source.CloseAlways
	tests := []struct {
		name      string
		old, new  *source.Service
		was, now  policy.Conditions
		all       bool
		closed    string // endpoints whose connections are closed
		reopened  string // those whose connections go on, and are not joined by a new one
		takenOver bool   // the frontends of old move to the service other
	}{
		{name: "nothing", old: web(always, one, two), new: web(always, one, two), was: up, now: up},
		{name: "fails", old: web(failed, one, two), new: web(failed, one, two), was: up, now: fails, closed: one},
		{name: "fails, never", old: web(never, one, two), new: web(never, one, two), was: up, now: fails, reopened: one},
		{name: "failed already, never", old: web(never, one, two), new: web(never, one, two, three), was: fails, now: fails},
		{name: "failed when svcproxy starts, never", new: web(never, one, two), now: fails, reopened: "10.0.0.1 10.0.0.3"},
		{name: "back again, never", old: web(never, one, two), new: web(never, one, two), was: fails, now: up},
		{name: "fails, and is used", old: web(never, one), new: web(never, one), was: up, now: fails},
		{name: "failed already", old: web(failed, one, two), new: web(failed, one, two, three), was: fails, now: fails},
		{name: "failed already, and the kernel may have held anything", old: web(failed, one, two), new: web(failed, one, two), was: fails, now: fails, all: true, closed: one, reopened: three},
		{name: "failed when svcproxy starts", new: web(failed, one, two), now: fails, closed: one, reopened: three},
		{name: "failed, and now it is to be closed", old: web(never, one, two), new: web(failed, one, two), was: fails, now: fails, closed: one},
		{name: "back again", old: web(failed, one, two), new: web(failed, one, two), was: fails, now: up},
		{name: "weight 0", old: web(always, one, two), new: web(always, one+" weight=0", two), was: up, now: up, reopened: one},
		{name: "disabled", old: web(always, one, two), new: web(always, one+" disabled", two), was: up, now: up, reopened: one},
		{name: "not ready", old: web(always, one, two), new: web(always, one+" notready", two), was: up, now: up, closed: one},
		{name: "not ready, never", old: web(never, one, two), new: web(never, one+" notready", two), was: up, now: up, reopened: one},
		{name: "drained", old: web(always, one, two), new: web(always, one, two), was: up, now: policytest.Conditions(one+" passed drained", two+" passed"), reopened: one},
		{name: "drained for too long", old: web(always, one, two), new: web(always, one, two), was: policytest.Conditions(one+" passed drained", two+" passed"), now: policytest.Conditions(one+" passed drained overdue", two+" passed"), closed: one},
		{name: "removed", old: web(always, one, two), new: web(always, two), was: up, now: up, closed: one},
		{name: "removed, failed", old: web(failed, one, two), new: web(failed, two), was: up, now: up, reopened: one},
		{name: "removed when always begins", old: web(never, one, two), new: web(always, two), was: up, now: up, closed: one},
		{name: "all are removed", old: web(never, one, two), new: web(never), was: up, now: up, reopened: "10.0.0.1 10.0.0.2"},
		{name: "sources", old: web(always, one, two), new: admits(web(always, one, two), "10.8.0.0/16"), was: up, now: up, reopened: "10.0.0.1 10.0.0.2 10.0.0.3"},
		{name: "sources, others", old: web(always, one, two), new: admits(web(always, one, two), "10.9.0.0/16"), was: up, now: up, reopened: three},
		{name: "the service goes", old: web(always, one), was: up, closed: one},
		{name: "the service goes, failed", old: web(failed, one), was: up, reopened: one},
		{name: "the service comes", new: web(never, one), now: up, reopened: "10.0.0.2 10.0.0.3"},
		{name: "another service takes over", old: web(always, one, two, three), was: up, now: up, takenOver: true, reopened: three},
	}
	for _, tt := range tests {
		resolve := func(s *source.Service, known policy.Conditions) *policy.Resolved {
			if s == nil {
				return nil
			}
			return policy.Resolve(s, known, policytest.Node(), policy.IPv4)
		}
		ch := policy.ServiceChange{Old: resolve(tt.old, tt.was), New: resolve(tt.new, tt.now)}
		changes := map[source.Key]policy.ServiceChange{{Name: "web"}: ch}
		if tt.takenOver {
			changes[other.Key] = policy.ServiceChange{New: resolve(other, tt.now)}
		}
		c := newTable(source.TCP)
		sync := func(changes map[source.Key]policy.ServiceChange, all bool) *look {
			return c.synced(&Sync{Changes: c.since(changes), Host: policytest.Node().Host(policy.IPv4), Node: policytest.Node(), All: all})
		}
		sync(nil, false)
		sync(map[source.Key]policy.ServiceChange{{Name: "web"}: {New: ch.Old}}, false)
		l := sync(changes, tt.all)
		q := c.query(l)
		for _, dst := range []string{vip, nodePort, "10.96.0.11:80", "192.0.2.1:80"} {
			for _, reply := range []string{one, two, three} {
				f := Flow{Src: netip.MustParseAddrPort("10.9.9.9:999"), Dst: netip.MustParseAddrPort(dst), Reply: netip.AddrPortFrom(netip.MustParseAddr(reply), 8080)}
				want, ours := Keep, dst == vip || dst == nodePort
				switch {
				case ours && strings.Contains(tt.closed, reply):
					want = Remove
				case ours && strings.Contains(tt.reopened, reply):
					want = Reopen
				}
				asked := l.all || slices.Contains(q.To, f.Dst) && (len(q.At) == 0 || slices.Contains(q.At, f.Reply))
				if want != Keep && tt.takenOver {
					asked = true // not what a change of these services makes stale
				}
				if got := c.judge(l, f); got != want && asked || want != Keep && !asked {
					t.Errorf("%s: %s at %s: verdict %d, want %d; asked for: %v", tt.name, dst, reply, got, want, asked)
				}
				expectStages(t, tt.name, c, l, f, want != Keep && asked, want == Remove)
			}
		}
		if l.all && !tt.all {
			t.Errorf("%s: it looks at all", tt.name)
		}
	}
}

// expectStages checks what becomes of connections that are not established, of an endpoint whose are
// stale or not.
func expectStages(t *testing.T, name string, c *table, l *look, f Flow, stale, closed bool) {
	t.Helper()
	if !stale {
		return
	}
	waits, over, opening, told := f, f, f, f
	waits.Unreplied, over.Ended, opening.Opening, told.Reopening = true, true, true, true
	dead := c.dead(l, f)
	for _, tt := range []struct {
		what string
		f    Flow
		done int
		want Verdict
	}{
		{"unanswered", waits, 0, Remove},
		{"over", over, 0, Remove},
		{"half-open", opening, 0, choice(closed || dead, Remove, await)},
		{"half-open for long", opening, halfOpenLooks, Remove},
		{"said before", told, 0, choice(closed, Remove, Keep)},
	} {
		at := *l
		at.done = tt.done
		if got := c.judge(&at, tt.f); got != tt.want {
			t.Errorf("%s: %s, %v: verdict %d, want %d", name, tt.what, f, got, tt.want)
		}
	}
}

func choice(first bool, a, b Verdict) Verdict {
	if first {
		return a
	}
	return b
}

// Where a node port leaves an address, its connections there end like those of a service that goes, and
// no others.
func TestCloserOfAddressesLeft(t *testing.T) {
	node := policytest.Node(func(n *policy.Node) {
		n.Addrs = policytest.Addrs("192.0.2.1", "192.0.2.2")
		n.UpAddrs = n.Addrs
		n.NodePortAddrs = n.Addrs
	})
	web := func(c source.CloseConnections, list ...string) *policy.Resolved {
		s := policytest.Service(policytest.Closing(c), policytest.Endpoints("10.0.0.1"))
		s.VIPs, s.Ports[0].NodePort = nil, 30080
		if len(list) > 0 {
			s.NodePortAddresses = source.SelectAddresses(list)
		}
		return policy.Resolve(s, nil, node, policy.IPv4)
	}
	for _, tt := range []struct {
		name     string
		old, now *policy.Resolved
		want     string
	}{
		{"always", web(source.CloseAlways, "all"), web(source.CloseAlways, "192.0.2.1/32"), "[192.0.2.2:30080]"},
		{"from the setting", web(source.CloseAlways), web(source.CloseAlways, "192.0.2.1/32"), "[192.0.2.2:30080]"},
		{"never", web(source.CloseNever, "all"), web(source.CloseNever, "192.0.2.1/32"), "[]"},
		{"one more", web(source.CloseAlways, "192.0.2.1/32"), web(source.CloseAlways, "all"), "[]"},
	} {
		c := newTable(source.TCP)
		sync := func(r *policy.Resolved) *look {
			return c.synced(&Sync{Changes: c.since(map[source.Key]policy.ServiceChange{{Name: "web"}: {New: r}}), Host: node.Host(policy.IPv4), Node: node})
		}
		sync(tt.old)
		l := sync(tt.now)
		var got []netip.AddrPort
		for at, change := range l.changed {
			if len(change.closed) > 0 {
				got = append(got, at)
			}
		}
		if got := fmt.Sprint(got); got != tt.want {
			t.Errorf("%s: it closes what went to %s, want %s", tt.name, got, tt.want)
		}
	}
}

// Between two looks an endpoint may be back: what it has not answered yet is left to it then.
// While it is still down, other changes of its service make no difference.
func TestUnansweredOfOneThatIsBack(t *testing.T) {
	up, down := policytest.Conditions("10.0.0.1 passed", "10.0.0.2 passed"), policytest.Conditions("10.0.0.1 failed", "10.0.0.2 passed")
	svc := policytest.Service(policytest.Probed, policytest.Closing(source.CloseNever), policytest.Endpoints("10.0.0.1", "10.0.0.2"))
	more := policytest.Service(policytest.Probed, policytest.Closing(source.CloseNever), policytest.Endpoints("10.0.0.1", "10.0.0.2", "10.0.0.3 weight=0"))
	was, failed := policy.Resolve(svc, up, policytest.Node(), policy.IPv4), policy.Resolve(svc, down, policytest.Node(), policy.IPv4)
	for _, tt := range []struct {
		name string
		then *policy.Resolved
		want bool
	}{
		{"back", was, false},
		{"still down", policy.Resolve(more, down, policytest.Node(), policy.IPv4), true},
	} {
		c := newTable(source.TCP)
		tell := func(to *policy.Resolved) *look {
			return c.synced(&Sync{Changes: c.since(map[source.Key]policy.ServiceChange{svc.Key: {New: to}}), Host: policytest.Node().Host(policy.IPv4), Node: policytest.Node()})
		}
		tell(was)
		first := tell(failed)
		tell(tt.then)
		f := Flow{Src: netip.MustParseAddrPort("10.9.9.9:999"), Dst: netip.MustParseAddrPort("10.96.0.10:80"), Reply: netip.MustParseAddrPort("10.0.0.1:8080"), Unreplied: true}
		if got := c.judge(first, f) == Remove; got != tt.want {
			t.Errorf("%s: a connection that waits for an answer is stale: %v, want %v", tt.name, got, tt.want)
		}
	}
}
