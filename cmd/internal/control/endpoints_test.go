package control

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/proxier/conditions"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/report"
	"svcproxy.dev/svcproxy/source"
)

// checked is a service with an endpoint in each state that more is known of than its file says.
// Its texts are hostile.
func checked() report.ServiceStatus {
	check := func(took time.Duration, err string) *report.CheckStatus {
		return &report.CheckStatus{Type: "tcp", Asked: now.Add(-2 * time.Second), Took: took, Error: err}
	}
	day := now.Add(-74 * time.Hour)
	return report.ServiceStatus{
		Namespace: "default", Name: "web", Place: "web.toml:1:1",
		Frontends: []report.FrontendStatus{{Address: "10.96.0.10:80/tcp", Kind: "vip", Action: "balance", Targets: 2, Endpoints: 9}},
		Endpoints: []report.EndpointStatus{
			{Address: "192.168.10.11", State: "up", Weight: 1, Since: day, Check: check(340*time.Microsecond, "")},
			{Address: "192.168.10.12", State: "down", Weight: 1, Since: now.Add(-12 * time.Second), Check: check(2*time.Second, "connect timed out\x1b[2J")},
			{Address: "192.168.10.13", State: "draining", Weight: 1, Since: now.Add(-2 * time.Minute), Check: check(12*time.Millisecond, ""),
				Drain: &policy.Drain{Reason: "disk", By: "alice\n", At: now.Add(-2 * time.Minute), Until: now.Add(13 * time.Minute)}},
			{Address: "192.168.10.14", State: "draining", Weight: 1, Since: day, Drain: &policy.Drain{By: "root", At: day, Until: now}},
			{Address: "192.168.10.15", State: "slow start", Share: 40, Weight: 1, Since: now.Add(-4 * time.Second), Check: check(time.Millisecond, "")},
			{Address: "192.168.10.16", State: "backup", Tier: 1, Weight: 1, MaxConnections: 2000, Since: day, Check: check(9999*time.Microsecond, "")},
			{Address: "192.168.10.17", State: "checking", Weight: 1, Check: &report.CheckStatus{Type: "tcp"}},
			{Address: "192.168.10.18", State: "disabled", Weight: 1},
			{Address: "192.168.10.19", State: "up", Weight: 1, Since: day, Check: check(time.Second, "connection refused")},
		},
	}
}

// Each endpoint has its state in a word, since when, and why.
func TestWriteCheckedServices(t *testing.T) {
	off := report.ServiceStatus{Namespace: "default", Name: "off", Unit: "off.toml", Disabled: true, Endpoints: []report.EndpointStatus{{Address: "192.168.10.11", State: "disabled", Weight: 1}}}
	var b strings.Builder
	fatal.If(t, WriteServices(&b, []report.ServiceStatus{checked(), off}, now))
	want := `
SERVICE  default/web  (web.toml:1:1)
ADDRESS            KIND  READY  ACTION
10.96.0.10:80/tcp  vip   2/9    balance

ENDPOINT       STATE           WEIGHT  WHERE   SINCE               WHY
192.168.10.11  up              1       remote  3d2h                tcp 0.3 ms
192.168.10.12  DOWN            1       remote  12s                 tcp: connect timed out\x1b[2J, 2s ago
192.168.10.13  draining        1       remote  2m0s, 13m0s left    drained by alice\n: disk; tcp 12 ms
192.168.10.14  draining        1       remote  3d2h, time is over  drained by root
192.168.10.15  slow-start 40%  1       remote  4s                  tcp 1.0 ms
192.168.10.16  backup          1       remote  3d2h                tier 1; at most 2,000 connections; tcp 10.0 ms
192.168.10.17  checking        1       remote  -                   tcp: not asked yet
192.168.10.18  disabled        1       remote  -                   -
192.168.10.19  up              1       remote  3d2h                tcp: connection refused, 2s ago

SERVICE  default/off  (off.toml)
ADDRESS  KIND  READY  ACTION
-        -     -      disabled

ENDPOINT       STATE     WEIGHT  WHERE
192.168.10.11  disabled  1       remote
`
	if diff := cmp.Diff(strings.TrimPrefix(want, "\n"), b.String()); diff != "" {
		t.Errorf("services (-want +got):\n%s", diff)
	}
}

// How packets get to endpoints stands with what becomes of them.
func TestWriteForward(t *testing.T) {
	f := report.FrontendStatus{Address: "10.96.0.10:80/tcp", Kind: "vip", Action: "balance", Targets: 1, Endpoints: 1, Forward: "tunnel ipip"}
	var b strings.Builder
	fatal.If(t, WriteServices(&b, []report.ServiceStatus{{Namespace: "default", Name: "web", Frontends: []report.FrontendStatus{f}}}, now))
	if want := "10.96.0.10:80/tcp  vip   1/1    balance  tunnel ipip\n"; !strings.Contains(b.String(), want) {
		t.Errorf("got\n%swant %s", b.String(), want)
	}
}

// So does that not everybody may use an address.
func TestWriteRestricted(t *testing.T) {
	balances := report.FrontendStatus{Address: "10.96.0.10:80/tcp", Kind: "vip", Action: "balance", Targets: 1, Endpoints: 1, Restricted: true}
	rejects := report.FrontendStatus{Address: "10.96.0.11:80/tcp", Kind: "vip", Action: "reject", Reason: "no endpoints", Restricted: true}
	var b strings.Builder
	fatal.If(t, WriteServices(&b, []report.ServiceStatus{{Namespace: "default", Name: "web", Frontends: []report.FrontendStatus{balances, rejects}}}, now))
	for _, want := range []string{"balance  restricted\n", "REJECTS  restricted  no endpoints\n"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("got\n%swant %s", b.String(), want)
		}
	}
}

// A service none of whose endpoints passes is a problem though it serves, and a disabled one is none.
func TestSummaryOfAllDown(t *testing.T) {
	f := report.FrontendStatus{Address: "10.96.0.10:80/tcp", Kind: "vip", Action: "balance", Targets: 2, AllFailed: "use_all",
		Reason: "no endpoint passes its check, so those that fail are used: 2 (192.168.10.12: connect timed out)"}
	sum := report.Summary{
		Totals:   report.Totals{Services: 5, Disabled: 2, Actions: map[string]int{"balance": 3}},
		Problems: []report.Problem{{Subject: "default/web", Address: f.Address, State: f.Trouble(), Reason: f.Reason, Place: "web.toml:1:1"}},
	}
	s := Summarize(Status{Daemon: Daemon{Healthy: true, Ready: true}}, sum, Few)
	if got, want := s.Trouble(), "1 problem, the first: default/web 10.96.0.10:80/tcp ALL DOWN "+f.Reason+" (web.toml:1:1)"; got != want {
		t.Errorf("trouble: %s\nwant     %s", got, want)
	}
	var b strings.Builder
	fatal.If(t, s.WriteTable(&b, now))
	if want := "5 services (2 disabled), 3 addresses serve"; !strings.Contains(b.String(), want) {
		t.Errorf("no %q in\n%s", want, b.String())
	}
	web := report.ServiceStatus{Namespace: "default", Name: "web", Frontends: []report.FrontendStatus{f}}
	if why, pending := verdict([]report.ServiceStatus{web}); pending || why != "default/web 10.96.0.10:80/tcp ALL DOWN "+f.Reason {
		t.Errorf("check: %q, pending %v", why, pending)
	}
	off := report.ServiceStatus{Namespace: "default", Name: "off", Disabled: true}
	if why, _ := verdict([]report.ServiceStatus{off}); why != "default/off is disabled" {
		t.Errorf("check of a disabled service: %q", why)
	}
	if got := ActionOf(f); got != "ALL DOWN  "+f.Reason {
		t.Errorf("action: %q", got)
	}
	f.AllFailed, f.Reason = "", "endpoints pass their check again"
	if got := ActionOf(f); got != "balance  endpoints pass their check again" {
		t.Errorf("action while others may follow: %q", got)
	}
}

// Endpoints that could serve are ready, whatever the word for them.
func TestReadyShare(t *testing.T) {
	web := checked()
	if got, want := readyShare(&web), 1000*4/9; got != want {
		t.Errorf("share %d, want %d", got, want)
	}
}

// Drains are told with who, why, since when and until when, that of this host first.
func TestDrainsNameOwnerReasonAndTimes(t *testing.T) {
	st := Status{Daemon: Daemon{Healthy: true, Ready: true}, Drains: []conditions.Drained{
		{Target: conditions.DrainTarget{Node: true}, Drain: policy.Drain{By: "alice", Reason: "disk\x1b[2J", At: now.Add(-2 * time.Minute), Until: now.Add(13 * time.Minute)}},
		{Target: conditions.DrainTarget{Addr: netip.MustParseAddr("192.168.10.12"), Service: source.Key{Namespace: "default", Name: "web"}}, Drain: policy.Drain{By: "root", At: now.Add(-time.Hour)}},
	}}
	const first = `this host, by alice for 2m0s: disk\x1b[2J, 13m0s left`
	s := Summarize(st, report.Summary{}, Few)
	var b strings.Builder
	fatal.If(t, s.WriteTable(&b, now))
	if want := "DRAINS  2  " + first + "; and 1 more: svcproxy status -o wide\n"; !strings.HasSuffix(b.String(), want) {
		t.Errorf("no %q in\n%s", want, b.String())
	}
	if s.Trouble() != "" {
		t.Errorf("a drain is trouble: %s", s.Trouble())
	}
	b.Reset()
	fatal.If(t, st.WriteTable(&b, now))
	if want := "\nDRAINS\n" + first + "\ndefault/web/192.168.10.12, by root for 1h0m\n"; !strings.HasSuffix(b.String(), want) {
		t.Errorf("no %q in\n%s", want, b.String())
	}
}

// Connections have a place where they are counted.
func TestWriteServicesWithTraffic(t *testing.T) {
	n := uint64(1041)
	endpoints := []report.EndpointStatus{{Address: "10.0.0.1", Weight: 1, State: "ready", Active: &n}, {Address: "10.0.0.2", Weight: 1, State: "ready", Active: new(uint64)}}
	web := report.ServiceStatus{Namespace: "default", Name: "web", Endpoints: endpoints, Traffic: &report.TrafficStatus{ConnectionRate: 140.04, Active: n}}
	var b strings.Builder
	fatal.If(t, WriteServices(&b, []report.ServiceStatus{web}, time.Unix(1, 0)))
	want := `SERVICE  default/web
TRAFFIC  140.0 connections/s, 1,041 active
ADDRESS  KIND  READY  ACTION
-        -     -      no address or node port that is served here

ENDPOINT  STATE  WEIGHT  WHERE   ACTIVE
10.0.0.1  ready  1       remote  1,041
10.0.0.2  ready  1       remote  0
`
	if b.String() != want {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
}
