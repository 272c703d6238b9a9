package control

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/cmd/internal/announcer"
	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/proxier/report"
)

// A status names sessions that are down as problems, and addresses that are not announced with the reason.
func TestSummaryOfAnnounced(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	st := Status{Daemon: Daemon{Ready: true, Healthy: true}, Announced: Announced{
		Sessions: []announcer.Session{
			{Peer: netip.MustParseAddr("192.0.2.254"), AS: 64500, State: "established", Since: now.Add(-72 * time.Hour), IPv4: announcer.SessionRoutes{Announced: 3}, Notice: "sends many routes"},
			{Peer: netip.MustParseAddr("2001:db8::1"), AS: 64501, State: "active", Since: now.Add(-time.Minute), LastError: "the peer is AS 64502"},
		},
		Addresses: []report.AnnouncedAddress{
			{Address: netip.MustParseAddr("203.0.113.1"), Means: "bgp", Announced: true},
			{Address: netip.MustParseAddr("203.0.113.0"), Means: "bgp", Withheld: "no_router", Reason: "ready, no router: no session is established"},
			{Address: netip.MustParseAddr("203.0.113.2"), Means: "bgp", Withheld: "none_usable", Reason: "no usable endpoint: 2 not ready\x1b", Place: "web.toml:3:1"},
			{Address: netip.MustParseAddr("203.0.113.3"), Means: "l2", Withheld: "unproven", Reason: "no endpoint has passed its check yet"},
		},
	}}
	text := func(most int) string {
		s := Summarize(st, report.Summary{}, most)
		var b strings.Builder
		fatal.If(t, s.WriteTable(&b, now))
		_, section, _ := strings.Cut(b.String(), "PROBLEMS")
		return "PROBLEMS" + section
	}
	const want = `PROBLEMS  1
  bgp  2001:db8::1  DOWN  active the peer is AS 64502

ANNOUNCED  1 address by bgp, 3 not
  router 2001:db8::1  AS 64501  ACTIVE for 1m0s       0 routes  the peer is AS 64502
  router 192.0.2.254  AS 64500  established for 3d0h  3 routes  sends many routes
  203.0.113.2         bgp       NOT                   no usable endpoint: 2 not ready\x1b (web.toml:3:1)
  203.0.113.3         l2        NOT                   no endpoint has passed its check yet
  203.0.113.0         bgp       NOT                   ready, no router: no session is established
`
	if got := text(Few); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
	if got := text(1); !strings.Contains(got, "1 address by bgp, 3 not") || !strings.Contains(got, "and 2 more: svcproxy status --problems") {
		t.Errorf("with one address:\n%s", got)
	}
	if s := Summarize(st, report.Summary{}, Few); !strings.Contains(s.Trouble(), "bgp 2001:db8::1 DOWN active") {
		t.Error(s.Trouble())
	}
	for i := range 60 {
		st.Announced.Sessions = append(st.Announced.Sessions, announcer.Session{Peer: netip.MustParseAddr(fmt.Sprintf("192.0.2.%d", i)), State: "idle", Since: now})
	}
	if got := strings.Count(text(Few), "\n"); got > 22 {
		t.Errorf("%d lines:\n%s", got, text(Few))
	}
}

// A service shows what becomes of its addresses in the network, and all of it is in the wide table.
func TestAnnouncedOfServices(t *testing.T) {
	rows := []report.AnnouncedAddress{
		{Address: netip.MustParseAddr("203.0.113.1"), Means: "bgp", Announced: true},
		{Address: netip.MustParseAddr("203.0.113.2"), Means: "bgp", Withheld: "disabled", Reason: "enabled = false"},
	}
	const want = "ANNOUNCED    BY   STATE\n203.0.113.1  bgp  announced\n203.0.113.2  bgp  NOT  enabled = false\n"
	var b strings.Builder
	if err := WriteServices(&b, []report.ServiceStatus{{Name: "web", Announced: rows}}, time.Time{}); err != nil || !strings.HasSuffix(b.String(), want) {
		t.Errorf("%v:\n%s", err, b.String())
	}
	b.Reset()
	st := Status{Announced: Announced{Addresses: rows, Sessions: []announcer.Session{{Peer: netip.MustParseAddr("192.0.2.254"), State: "idle"}}}}
	if err := st.WriteTable(&b, time.Time{}); err != nil || !strings.Contains(b.String(), want) || !strings.Contains(b.String(), "router 192.0.2.254") {
		t.Errorf("%v:\n%s", err, b.String())
	}
}
