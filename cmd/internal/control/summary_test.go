package control

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"svcproxy.dev/svcproxy/cmd/internal/announcer"
	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/proxier/conditions"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/report"
	"svcproxy.dev/svcproxy/source"
)

// of10000 is what a loop tells of 10,000 services, two addresses of which do not serve.
var of10000 = report.Summary{
	Totals: report.Totals{
		Services: 10_000, Actions: map[string]int{"balance": 19_998, "reject": 1, "drop": 1}, Families: sample.Loop.Families[:1],
	},
	Problems: []report.Problem{
		{Subject: "default/web", Address: "[fd00:96::10]:80/tcp", State: "REJECTS", Reason: "no IPv6 endpoint", Place: "web.toml:1:1"},
		{Subject: "prod/svc-777", Address: "10.96.3.28:80/tcp", State: "DROPS", Reason: "policy local: no endpoint on this node; usable elsewhere: 2", Place: "\x1b[2Jbig.json:3307:1"},
	},
	Warnings: []string{"service default/web: 10.96.0.10 is on eth0"},
}

func TestSummaryTable(t *testing.T) {
	s := Summarize(sample, of10000, All)
	want := `
svcproxy 1.0  iptables  host1  ready  up 1d2h  pid 7
10,000 services, 19,998 addresses serve, 1 rejects, 1 drops  sync 12.3ms, 3s ago

FILES  1 ok  1 REFUSED  1 STALE
  "\x1b[2Jb.toml":2:1  stale for 1h0m, 1 service  unknown key "x"
  d.toml:1:1           refused for 0s, 1 service  taken

PROBLEMS  4
  ipv4 UNSERVED service default/web:http: no such scheduler
  host IPv4 forwarding is off
  default/web   [fd00:96::10]:80/tcp  REJECTS  no IPv6 endpoint (web.toml:1:1)
  prod/svc-777  10.96.3.28:80/tcp     DROPS    policy local: no endpoint on this node; usable elsewhere: 2 (\x1b[2Jbig.json:3307:1)

WARNINGS  2
  c.toml:3:1: warning: no address
  service default/web: 10.96.0.10 is on eth0
NEEDS A RESTART  mode
`
	var b strings.Builder
	fatal.If(t, s.WriteTable(&b, now))
	if diff := cmp.Diff(strings.TrimPrefix(want, "\n"), b.String()); diff != "" {
		t.Errorf("summary (-want +got):\n%s", diff)
	}
}

// Programs read the summary: its keys, their order, and what is left out where it is empty.
func TestSummaryJSON(t *testing.T) {
	st, sum := sample, of10000
	st.Loop.Services, st.Sources = nil, []source.Status{{Source: "file", Files: sample.Sources[0].Files[2:]}}
	sum.Disabled, sum.Problems = 1, sum.Problems[:1]
	s := Summarize(st, sum, 2)
	s.Everything = sample.Loop.Services[1:]
	got, err := json.MarshalIndent(s, "", "  ")
	fatal.If(t, err)
	want, err := os.ReadFile("testdata/summary.json")
	fatal.If(t, err)
	if diff := cmp.Diff(string(want), string(got)+"\n"); diff != "" {
		t.Errorf("summary (-want +got):\n%s", diff)
	}
}

// However much is wrong, what is first asked for stands on a screen of 24 lines, and says how
// much more there is.
func TestSummaryIsOneScreen(t *testing.T) {
	st := Status{Daemon: Daemon{Healthy: true}, Restart: []string{"mode"}, Drains: make([]conditions.Drained, 100), Sources: []source.Status{{Source: "file"}}}
	sum := report.Summary{Totals: report.Totals{Services: 5000, Actions: map[string]int{"reject": 5000}}, MoreProblems: 4994, MoreWarnings: 94}
	for i := range 100 {
		f := source.FileStatus{Path: fmt.Sprintf("%d.toml", i), State: source.Refused}
		f.Faults = []source.Fault{{Msg: "one"}, {Msg: "two"}, {Msg: "odd", Warning: true}}
		st.Sources[0].Files = append(st.Sources[0].Files, f)
		st.Warnings = append(st.Warnings, "host")
	}
	sum.Problems, sum.Warnings = make([]report.Problem, Few), make([]string, Few)
	s := Summarize(st, sum, Few)
	var b strings.Builder
	fatal.If(t, s.WriteTable(&b, now))
	lines := strings.Split(b.String(), "\n")
	if len(lines) > 24 {
		t.Errorf("%d lines:\n%s", len(lines), b.String())
	}
	for _, want := range []string{"FILES  0 ok  100 REFUSED\n", "one (and 1 more fault)\n", "  and 97 more: ", "PROBLEMS  5,100\n", "  and 5,094 more: ", "WARNINGS  200\n", "DRAINS  100  ", "; and 99 more: "} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("it lacks %q:\n%s", want, b.String())
		}
	}
}

// Where there is little, all of it is shown.
func TestSummaryOfFew(t *testing.T) {
	s := Summarize(Status{Daemon: Daemon{Healthy: true, Ready: true}}, report.Summary{Totals: report.Totals{Services: 2, Actions: map[string]int{"balance": 1, "drop": 1}}}, Few)
	s.Everything = sample.Loop.Services
	var b strings.Builder
	fatal.If(t, s.WriteTable(&b, now))
	want := `
SERVICE       ADDRESS              KIND       READY  ACTION
default/web   10.96.0.10:80/tcp    vip        1/2    balance
default/web   node-port:30080/tcp  node-port  0/2    DROPS  policy local: no endpoint on this node; usable elsewhere: 1
default/idle  -                    -          -      no address or node port that is served here
`
	if !strings.HasSuffix(b.String(), want) {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
}

func TestWriteServices(t *testing.T) {
	web, idle := sample.Loop.Services[0], sample.Loop.Services[1]
	web.Place = "a.toml:3:1"
	web.Description, web.Labels = "The shop, and its \x1b[2Jfront end", map[string]string{"team": "web", "example.com/tier": ""}
	var b strings.Builder
	fatal.If(t, WriteServices(&b, []report.ServiceStatus{web, idle}, now))
	want := `
SERVICE  default/web  (a.toml:3:1)
ABOUT    The shop, and its \x1b[2Jfront end
LABELS   example.com/tier= team=web
ADDRESS              KIND       READY  ACTION
10.96.0.10:80/tcp    vip        1/2    balance
node-port:30080/tcp  node-port  0/2    DROPS  policy local: no endpoint on this node; usable elsewhere: 1

ENDPOINT            STATE     WEIGHT  WHERE
192.168.10.11:8080  ready     1       local
192.168.10.12:8080  weight 0  0       remote
warning: 10.96.0.10 is on eth0

SERVICE  default/idle  (/etc/svcproxy/a.toml)
ADDRESS  KIND  READY  ACTION
-        -     -      no address or node port that is served here

ENDPOINT  STATE         WEIGHT  WHERE
-         no endpoints  -       -
`
	if diff := cmp.Diff(strings.TrimPrefix(want, "\n"), b.String()); diff != "" {
		t.Errorf("services (-want +got):\n%s", diff)
	}
}

// Ports of a range have a row, with names and in the list of all.
func TestRowsOfRanges(t *testing.T) {
	s := report.ServiceStatus{Namespace: "default", Name: "media"}
	for n := range 100 {
		s.Frontends = append(s.Frontends, report.FrontendStatus{Address: fmt.Sprintf("203.0.113.20:%d/udp", 20000+n), Kind: "external", Action: "balance", Targets: 1, Endpoints: 1})
	}
	var b strings.Builder
	fatal.If(t, WriteServices(&b, []report.ServiceStatus{s}, now))
	fatal.If(t, WriteAddresses(&b, []report.ServiceStatus{s}))
	if row := "203.0.113.20:20000-20099/udp  external  1/1    balance\n"; strings.Count(b.String(), row) != 2 || strings.Count(b.String(), "203.0.113.20") != 2 {
		t.Errorf("services\n%s", b.String())
	}
}

// Everything that hinders is trouble, and nothing else.
func TestTroubleIsEverythingThatHinders(t *testing.T) {
	fine := func() (Status, report.Summary) {
		return Status{Daemon: Daemon{Ready: true, Healthy: true}, Sources: []source.Status{{
			Source: "file", Warnings: []string{"web.yaml is not read"}, Notes: 1,
			Files: []source.FileStatus{{Path: "a.toml", State: source.Accepted, Faults: []source.Fault{{Msg: "no address", Warning: true}}}},
		}}}, report.Summary{Totals: report.Totals{Services: 1, Actions: map[string]int{"balance": 1}}, Warnings: []string{"odd"}}
	}
	for _, tt := range []struct {
		name string
		edit func(*Status, *report.Summary)
		want string
	}{
		{"only warnings", func(*Status, *report.Summary) {}, ""},
		{"restart", func(st *Status, _ *report.Summary) { st.Restart = []string{"mode"} }, ""},
		{"starting", func(st *Status, _ *report.Summary) { st.Ready = false }, "the first sync is not complete"},
		{"unhealthy", func(st *Status, _ *report.Summary) { st.Healthy = false }, "1 problem, the first: svcproxy UNHEALTHY a change has waited too long for a sync"},
		{"sync", func(_ *Status, l *report.Summary) {
			l.Families = []report.FamilyStatus{{Family: "ipv6", Error: "no\nmemory", FailingSince: now}}
		}, `1 problem, the first: ipv6 SYNC FAILS since 2026-01-02T03:04:05Z: no\nmemory`},
		{"stalled", func(_ *Status, l *report.Summary) {
			l.Families = []report.FamilyStatus{{Family: "ipv6", Stalled: "the sync waits for ip6tables-restore", StalledSince: now}}
		}, "1 problem, the first: ipv6 STALLED since 2026-01-02T03:04:05Z: the sync waits for ip6tables-restore"},
		{"waiting", func(_ *Status, l *report.Summary) {
			l.Families = []report.FamilyStatus{{Family: "ipv6", Waiting: "kubernetes"}}
		}, "1 problem, the first: ipv6 WAITS for source kubernetes"},
		{"settings", func(st *Status, _ *report.Summary) { st.Faults = []source.Fault{{Msg: "unknown key"}} }, "1 problem, the first: settings STALE unknown key"},
		{"source", func(st *Status, _ *report.Summary) { st.Sources[0].Notes = 0 }, "1 problem, the first: source file web.yaml is not read"},
		{"connection", func(st *Status, _ *report.Summary) {
			st.Sources[0].Connection = &source.Connection{Server: "https://a", Error: "refused"}
		}, "1 problem, the first: source file https://a DISCONNECTED refused"},
		{"object", func(st *Status, _ *report.Summary) {
			st.Sources[0].Objects = []source.FileStatus{{Path: "default/web", Faults: []source.Fault{{Msg: "taken"}}}}
		}, "1 problem, the first: default/web REFUSED taken"},
		{"host", func(st *Status, _ *report.Summary) { st.Warnings = []string{"forwarding is off"} }, "1 problem, the first: host forwarding is off"},
		{"stale file", func(st *Status, _ *report.Summary) { st.Sources[0].Files[0].State = source.Stale }, "1 file not used as it stands, see svcproxy status"},
		{"addresses", func(_ *Status, l *report.Summary) { l.Problems, l.MoreProblems = of10000.Problems[:1], 2 },
			"3 problems, the first: default/web [fd00:96::10]:80/tcp REJECTS no IPv6 endpoint (web.toml:1:1)"},
	} {
		st, loop := fine()
		tt.edit(&st, &loop)
		s := Summarize(st, loop, 1)
		if got := s.Trouble(); got != tt.want {
			t.Errorf("%s: %q\nwant %q", tt.name, got, tt.want)
		}
	}
}

func TestSelection(t *testing.T) {
	web := report.ServiceStatus{Namespace: "default", Name: "web", Labels: map[string]string{"team": "front", "example.com/tier": ""}}
	shop := report.ServiceStatus{Namespace: "prod", Name: "web-2", Labels: map[string]string{"team": "back"}}
	for _, tt := range []struct {
		patterns  string
		web, shop bool
	}{
		{"", true, true}, {"web", true, false}, {"default/web", true, false}, {"prod/web", false, false}, {"web*", true, true},
		{"prod/*", false, true}, {"*/web-?", false, true}, {"web prod/web-2", true, true}, {"Web", false, false}, {"*/*/*", false, false},
		{"team=front", true, false}, {"team=*", true, true}, {"team=", false, false}, {"example.com/tier=", true, false}, {"example.com/tier=*", true, false},
		{"tier=*", false, false}, {"team=bac? web", true, true}, {"*=front", false, false},
	} {
		s := source.Selection(strings.Fields(tt.patterns))
		matches := func(st report.ServiceStatus) bool {
			return s.Matches(source.Key{Namespace: st.Namespace, Name: st.Name}, st.Labels)
		}
		if matches(web) != tt.web || matches(shop) != tt.shop {
			t.Errorf("%q: %v, %v, want %v, %v", tt.patterns, matches(web), matches(shop), tt.web, tt.shop)
		}
		if tt.patterns == "*=front" { // which is said before anybody asks
			continue
		}
		if back, err := SelectionOf(queryOf(s)); err != nil || fmt.Sprint(back) != fmt.Sprint(s) {
			t.Errorf("%q crosses the socket as %q, %v", s, back, err)
		}
	}
	if got := Missing(source.Selection{"web", "x*", "team=fr*", "prod/*", "team=back"}, []report.ServiceStatus{web}); got != "no service is x*, or prod/*, or team=back" {
		t.Errorf("missing %q", got)
	}
	for _, bad := range []string{"=x", "*=x", "a b=x", "team=[", "team=\x1b["} {
		if _, err := SelectionOf(url.Values{"name": {bad}}); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%q is no pattern of labels", bad)) {
			t.Errorf("%q: error %v", bad, err)
		}
	}
	for _, bad := range []string{"[", ""} {
		if _, err := SelectionOf(url.Values{"name": {"web", bad}}); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%q is no name", bad)) {
			t.Errorf("%q: error %v", bad, err)
		}
	}
}

func TestSortServices(t *testing.T) {
	service := func(name, unit string, frontends, idle, ready, notReady int) (s report.ServiceStatus) {
		s.Name, s.Unit = name, unit
		for i := range frontends {
			s.Frontends = append(s.Frontends, report.FrontendStatus{Action: map[bool]string{true: "reject", false: "balance"}[i < idle]})
		}
		for i := range ready + notReady {
			s.Endpoints = append(s.Endpoints, report.EndpointStatus{State: map[bool]string{true: "ready", false: "not ready"}[i < ready]})
		}
		return s
	}
	for key, want := range map[string]string{"name": "abcd", "addresses": "badc", "endpoints": "cbad", "ready": "dbca", "problems": "dabc", "file": "dcba"} {
		list := []report.ServiceStatus{
			service("d", "1", 2, 2, 0, 0), service("c", "2", 1, 0, 3, 2), service("b", "3", 3, 0, 1, 2), service("a", "4", 2, 0, 2, 0),
		}
		fatal.If(t, SortServices(list, key))
		got := ""
		for _, s := range list {
			got += s.Name
		}
		if got != want {
			t.Errorf("by %s: %s, want %s", key, got, want)
		}
	}
	if err := SortServices(nil, "x"); err == nil || err.Error() != `unknown sort key "x"; want addresses, endpoints, file, name, problems, ready` {
		t.Errorf("error %v", err)
	}
}

// What a check says, and that it waits for a change that is on its way, but not for long.
func TestCheckWaitsForAPendingChange(t *testing.T) {
	old := [2]time.Duration{checkTime, pendingTime}
	checkTime = pace.Scale(2 * time.Minute)
	defer func() { checkTime, pendingTime = old[0], old[1] }()
	var asked int
	services := map[string][]string{ // actions, by how often was asked; the last goes on
		"fine": {"balance"}, "idle": {"reject"}, "soon": {"pending", "pending", "balance"}, "never": {"pending"}, "bare": nil,
		"read": {"unread", "unread", "balance"}, // the daemon starts
	}
	r := sampleRoutes()
	Get(r, "/v1/services", func(_ context.Context, query url.Values) (list []report.ServiceStatus, err error) {
		asked++
		which, err := SelectionOf(query)
		for name, actions := range services {
			s := report.ServiceStatus{Namespace: "default", Name: name, Announced: []report.AnnouncedAddress{{Means: "bgp", Withheld: "no_router"}}} // of no interest to a track script
			if n := len(actions); n > 0 {
				s.Frontends = []report.FrontendStatus{{Address: "a", Action: actions[min(asked, n)-1]}}
			}
			unread := len(s.Frontends) > 0 && s.Frontends[0].Action == "unread"
			if which.Matches(source.Key{Namespace: "default", Name: name}, nil) && !unread {
				list = append(list, s)
			}
		}
		return list, err
	})
	sessionDown := sessionProblems([]announcer.Session{{Peer: netip.MustParseAddr("192.0.2.254"), State: "active"}})
	Get(r, "/v1/summary", func(context.Context, url.Values) (Summary, error) {
		return Summary{Daemon: Daemon{Ready: asked > 1}, Problems: sessionDown}, nil
	})
	drains := []conditions.Drained{{Target: conditions.DrainTarget{Addr: netip.MustParseAddr("192.0.2.1")}}}
	Get(r, DrainPath, func(context.Context, url.Values) ([]conditions.Drained, error) { return drains, nil })
	dir := t.TempDir()
	defer serve(t, dir, r)()
	for names, want := range map[string]string{
		"": "the first sync is not complete", "fine": "", "idle": "default/idle a REJECTS", "soon": "", "never": "default/never a PENDING",
		"fine soon": "", "never idle": "default/idle a REJECTS", "fine gone x*": "no service is gone, or x*", "fine read": "", "bare": "default/bare has no address that is served here",
	} {
		asked, pendingTime = 0, pace.Scale(time.Minute)
		if names == "never" {
			pendingTime = 10 * time.Millisecond
		}
		got, err := NewClient(dir).Check(t.Context(), strings.Fields(names))
		if got != want || err != nil {
			t.Errorf("%q: %q, %v, want %q", names, got, err, want)
		}
	}
	drains = []conditions.Drained{{Target: conditions.DrainTarget{Node: true}, Drain: policy.Drain{By: "alice", Reason: "disk\x1b"}}}
	for _, names := range []string{"", "fine"} {
		if got, err := NewClient(dir).Check(t.Context(), strings.Fields(names)); got != `this host is drained by alice: disk\x1b` || err != nil {
			t.Errorf("%q while the host is drained: %q, %v", names, got, err)
		}
	}
	if _, err := NewClient(t.TempDir()).Check(t.Context(), nil); !errors.Is(err, ErrUnreachable) {
		t.Errorf("without a daemon: %v", err)
	}
}

// A daemon that does not answer is not waited for.
func TestCheckTakesNoLonger(t *testing.T) {
	old := checkTime
	checkTime = 50 * time.Millisecond
	defer func() { checkTime = old }()
	r := new(Routes)
	Get(r, "/v1/services", func(ctx context.Context, _ url.Values) (string, error) { <-ctx.Done(); return "", nil })
	Get(r, DrainPath, func(context.Context, url.Values) ([]conditions.Drained, error) { return nil, nil })
	dir := t.TempDir()
	defer serve(t, dir, r)()
	_, err := NewClient(dir).Check(t.Context(), source.Selection{"web"})
	if want := ErrUnreachable.Error() + ": no answer within 50ms"; err == nil || err.Error() != want || !errors.Is(err, ErrUnreachable) {
		t.Errorf("error %v\nwant  %s", err, want)
	}
}

// A screen holds what was shown last, whatever was before, and writes only what changed.
func TestScreenWritesOnlyWhatChanged(t *testing.T) {
	var b bytes.Buffer
	s := NewScreen(&b)
	show := func(text string, rows, columns int, want string) {
		t.Helper()
		b.Reset()
		fatal.If(t, s.Show([]byte(text), rows, columns))
		if b.String() != want {
			t.Errorf("wrote %q\nwant  %q", b.String(), want)
		}
	}
	show("a\nb\nc\n", 24, 80, "\x1b[H\x1b[2J\x1b[1;1Ha\x1b[K\x1b[2;1Hb\x1b[K\x1b[3;1Hc\x1b[K\x1b[4;1H")
	show("a\nx\nc\n", 24, 80, "\x1b[2;1Hx\x1b[K\x1b[4;1H")
	show("a\n", 24, 80, "\x1b[2;1H\x1b[J\x1b[2;1H")
	show("a\nb\nc\nd\n", 4, 80, "\x1b[H\x1b[2J\x1b[1;1Ha\x1b[K\x1b[2;1Hb\x1b[K\x1b[3;1H... and 2 more lines\x1b[K\x1b[4;1H")
	show("äöüß\n", 4, 3, "\x1b[H\x1b[2J\x1b[1;1Häö>\x1b[K\x1b[2;1H")
	show("äöüß\n", 0, 0, "\x1b[H\x1b[2J\x1b[1;1Häöüß\x1b[K\x1b[1;1H")
}

func TestNumbers(t *testing.T) {
	for n, want := range map[int]string{0: "0 addresses", 1: "1 address", 999: "999 addresses", 1000: "1,000 addresses", 1234567: "1,234,567 addresses"} {
		if got := Counted(n, "address"); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	for d, want := range map[time.Duration]string{0: "0s", 1234567: "1.2ms", 45678901: "45.7ms", 234567890: "235ms", 2207104591: "2.21s", 76543210987: "1m16.5s"} {
		if got := rounded(d).String(); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
