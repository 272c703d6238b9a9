package plan

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/claims"
	"svcproxy.dev/svcproxy/proxier/report"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/sourcetest"
)

// Whatever changes of a service has words, also what it will have one day.
func TestEveryFieldHasWords(t *testing.T) {
	same := sourcetest.Filled()
	for path, other := range sourcetest.Changes() {
		if same.Equal(other) || same.Key != other.Key || strings.HasSuffix(path, " twice") {
			continue // no change, another service, or a fault
		}
		edits := differences(same, other)
		if len(edits) == 0 || edits[0].Key == "order of lists" || edits[0].Text() == "" {
			t.Errorf("%s: %v", path, edits)
		}
	}
}

func TestServiceWords(t *testing.T) {
	base := func() *source.Service {
		return &source.Service{
			Key:  source.Key{Namespace: "default", Name: "web"},
			VIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1"), netip.MustParseAddr("10.96.0.2")}, Affinity: time.Hour,
			Ports: []source.Port{{Protocol: source.TCP, Port: 80, TargetPort: 8080, NodePort: 30080}},
			Endpoints: []source.Endpoint{
				{Addr: netip.MustParseAddr("192.0.2.1"), Weight: 1, Ready: true, Serving: true},
				{Addr: netip.MustParseAddr("192.0.2.2"), Weight: 1, Ready: true, Serving: true, Ports: map[string]uint16{"": 81}},
			},
		}
	}
	for _, tt := range []struct {
		name string
		edit func(*source.Service)
		want string
	}{
		{"weight", func(s *source.Service) { s.Endpoints[0].Weight = 0 }, "weight of 192.0.2.1: 1 -> 0"},
		{"readiness", func(s *source.Service) { s.Endpoints[1].Ready = false }, "ready of 192.0.2.2:81: true -> false"},
		{"port of an endpoint", func(s *source.Service) { s.Endpoints[1].Ports = map[string]uint16{"": 82} },
			"endpoints added: 192.0.2.2:82; endpoints removed: 192.0.2.2:81"},
		{"time of affinity", func(s *source.Service) { s.Affinity = 90 * time.Minute }, "session_affinity_timeout: 1h -> 1h30m"},
		{"no affinity", func(s *source.Service) { s.Affinity = 0 }, "session_affinity: client_ip -> none"},
		{"scheduler", func(s *source.Service) { s.Scheduler = "\x1b[2Jrr" }, `scheduler: "" -> \x1b[2Jrr`},
		{"flags and one packet", func(s *source.Service) { s.SchedulerFlags, s.OnePacket = source.SHFallback|source.SHPort, true },
			`scheduler_flags: "" -> sh-fallback,sh-port; one_packet: false -> true`},
		{"limits", func(s *source.Service) {
			s.Endpoints[0] = s.Endpoints[0].With(source.Extras{MaxConnections: 1<<31 - 1, MinConnections: 7})
		},
			"max_connections of 192.0.2.1: 0 -> 2147483647; min_connections of 192.0.2.1: 0 -> 7"},
		{"a health check", func(s *source.Service) { s.HealthCheck = &source.HealthCheck{Type: source.CheckTCP, Rise: 2} }, "health_check.type: none -> tcp"},
		{"a service that is disabled", func(s *source.Service) { s.Disabled = true }, "enabled: true -> false"},
		{"tier", func(s *source.Service) { s.Endpoints[0].Tier, s.SlowStart = 1, time.Minute },
			"tier of 192.0.2.1: 0 -> 1; slow_start: 0s -> 1m"},
		{"policy", func(s *source.Service) { s.ExternalTrafficPolicy = source.Local }, "external_traffic_policy: cluster -> local"},
		{"target port", func(s *source.Service) { s.Ports[0].TargetPort = 81 },
			"ports added: 80/tcp to 81, node port 30080; ports removed: 80/tcp to 8080, node port 30080"},
		{"order", func(s *source.Service) { s.VIPs[0], s.VIPs[1] = s.VIPs[1], s.VIPs[0] }, "order of lists: changed"},
		{"many", func(s *source.Service) {
			for i := range 200 {
				s.Endpoints = append(s.Endpoints, source.Endpoint{Addr: netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 10)})})
			}
		}, "endpoints added: 192.0.2.10, 192.0.2.11, 192.0.2.12 and 197 more"},
	} {
		now := base()
		tt.edit(now)
		svc := serviceOf(claims.Transition{Old: base(), New: now})
		if got := source.Printable(svc.text()); got != "~ default/web  "+tt.want {
			t.Errorf("%s: %s\nwant %s", tt.name, got, tt.want)
		}
	}
	added, removed := serviceOf(claims.Transition{New: base()}), serviceOf(claims.Transition{Old: base()})
	const what = "default/web  addresses: 10.96.0.1:80/tcp, 10.96.0.2:80/tcp, node port 30080/tcp; endpoints: 2"
	if added.text() != "+ "+what || removed.text() != "- "+what {
		t.Errorf("%s\n%s", added.text(), removed.text())
	}
	off := base()
	off.Disabled = true
	if got := serviceOf(claims.Transition{New: off}); got.text() != "+ "+what+"; enabled: false" {
		t.Errorf("disabled: %s", got.text())
	}
}

// A report of thousands of changes fits on a screen of 24 lines of text, and the whole is there too.
func TestLargePlanFitsOneScreen(t *testing.T) {
	r := &Report{Against: "x", Mode: "ipvs"}
	for range 1000 {
		r.Settings = append(r.Settings, Edit{Key: "a", Old: "1", New: "2"})
		r.Services = append(r.Services, Service{Name: "default/web", Op: "add"})
		r.Consequences = append(r.Consequences, report.Consequence{Service: "default/web", Protocol: "tcp", Effect: report.Cut})
		r.Objects = append(r.Objects, Object{"ipv4", proxier.Change{Op: "add", Object: "x"}})
	}
	for all, want := range map[bool]int{false: 24, true: 4005} {
		var b strings.Builder
		fatal.If(t, r.Write(&b, all))
		if n := strings.Count(b.String(), "\n"); all && n != want || n > want {
			t.Errorf("all %v: %d lines, want %d\n%.2000s", all, n, want, b.String())
		}
	}
}

// Consequences are sentences.
func TestConsequenceText(t *testing.T) {
	endpoint, at, node := netip.MustParseAddrPort("192.0.2.1:80"), "10.96.0.1:53/udp", "node port 30080/tcp"
	for _, tt := range []struct {
		c    report.Consequence
		in   Setting
		want string
	}{
		{report.Consequence{Protocol: "tcp", Effect: report.GoOn, Endpoints: []netip.AddrPort{endpoint}}, Setting{},
			"established TCP connections to 192.0.2.1:80 go on"},
		{report.Consequence{Protocol: "tcp", Effect: report.GoOn, Frontends: []string{node}, Connections: new(7)}, Setting{Drains: true, Drain: time.Minute},
			"established TCP connections to node port 30080/tcp go on for 1m at most (7 now)"},
		{report.Consequence{Protocol: "sctp", Effect: report.GoOn, Endpoints: []netip.AddrPort{endpoint}}, Setting{Drains: true},
			"established SCTP connections to 192.0.2.1:80 are cut"},
		{report.Consequence{Protocol: "udp", Effect: report.GoOn, Frontends: []string{at}}, Setting{Drains: true},
			"UDP flows to 10.96.0.1:53/udp stay where they are until they time out"},
		{report.Consequence{Protocol: "udp", Effect: report.FlowsRemoved, Frontends: []string{at}, Connections: new(0)}, Setting{},
			"UDP flows to 10.96.0.1:53/udp are removed (0 now)"},
		{report.Consequence{Protocol: "udp", Effect: report.Predating, Frontends: []string{at}}, Setting{},
			"UDP flows to 10.96.0.1:53/udp from before it served are removed"},
		{report.Consequence{Protocol: "tcp", Effect: report.Closed, Endpoints: []netip.AddrPort{endpoint}, Connections: new(7)}, Setting{},
			"established TCP connections to 192.0.2.1:80 are closed (7 now)"},
		{report.Consequence{Protocol: "tcp", Effect: report.Kept, Endpoints: []netip.AddrPort{endpoint}}, Setting{},
			"192.0.2.1:80 keeps its connections and gets no new ones"},
		{report.Consequence{Protocol: "tcp", Effect: report.Barred, Frontends: []string{node}, Sources: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}, Setting{},
			"new TCP connections to node port 30080/tcp are dropped unless they are from 10.0.0.0/8"},
		{report.Consequence{Protocol: "udp", Effect: report.Barred, Frontends: []string{at}}, Setting{},
			"new UDP connections to 10.96.0.1:53/udp are dropped: nobody is admitted"},
		{report.Consequence{Protocol: "tcp", Effect: report.Forgotten}, Setting{}, "session affinity: all clients get any endpoint"},
		{report.Consequence{Protocol: "tcp", Effect: report.Forgotten, Endpoints: []netip.AddrPort{endpoint}, Others: 3}, Setting{},
			"session affinity: clients of 192.0.2.1:80 get another endpoint; 3 others keep theirs"},
	} {
		tt.in.bound(&tt.c)
		if got := consequenceText(tt.c); got != tt.want {
			t.Errorf("%s\nwant %s", got, tt.want)
		}
	}
}
