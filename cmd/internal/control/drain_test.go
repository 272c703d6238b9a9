package control

import (
	"bytes"
	"net/netip"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/proxier/conditions"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

func TestWriteDrains(t *testing.T) {
	now := time.Date(2026, 11, 22, 21, 0, 0, 0, time.UTC)
	list := []conditions.Drained{
		{Target: conditions.DrainTarget{Node: true}, Drain: policy.Drain{By: "root", At: now.Add(-26 * time.Hour)}},
		{Target: conditions.DrainTarget{Addr: netip.MustParseAddr("192.168.10.12")},
			Drain: policy.Drain{Reason: "disk\x1b[2J", By: "anna", At: now.Add(-2 * time.Minute), Until: now.Add(13 * time.Minute)}},
		{Target: conditions.DrainTarget{Addr: netip.MustParseAddr("fd00::12"), Service: source.Key{Namespace: "default", Name: "web"}},
			Drain: policy.Drain{By: "1000", At: now, Until: now.Add(-time.Hour)}},
	}
	const want = `TARGET                REASON       USER  SINCE  TIME LEFT
node                  -            root  1d2h   no limit
192.168.10.12         disk\x1b[2J  anna  2m0s   13m0s
default/web/fd00::12  -            1000  0s     over for 1h0m
`
	var out bytes.Buffer
	if err := WriteDrains(&out, list, now); err != nil || out.String() != want {
		t.Errorf("%v\n%swant\n%s", err, out.String(), want)
	}
	out.Reset()
	if err := WriteDrains(&out, nil, now); err != nil || out.String() != "nothing is drained\n" {
		t.Errorf("without drains: %v, %s", err, out.String())
	}
	for i, want := range []string{
		"this host is drained: /healthz and health check node ports say 503",
		"192.168.10.12 is drained: no new connections; time left for established ones: 13m0s",
		"default/web/fd00::12 is drained: no new connections; time left for established ones: over for 1h0m",
	} {
		if got := DrainedLine(&list[i], now); got != want {
			t.Errorf("said %q, want %q", got, want)
		}
	}
}

func TestHeardLine(t *testing.T) {
	const none = "no load balancer hears of it: http_address is not listened on, and there is no health check node port"
	for want, heard := range map[string][]string{
		none: nil, "503 is answered by: a": {"a"}, "503 is answered by: a, b, c and 2 more": {"a", "b", "c", "d", "e"},
	} {
		if got := (&DrainAnswer{Heard: heard}).HeardLine(); got != want {
			t.Errorf("%v: %q, want %q", heard, got, want)
		}
	}
}

func TestRoutesLine(t *testing.T) {
	for marked, want := range map[int]string{0: "", 2: "2 routes by BGP: marked with GRACEFUL_SHUTDOWN now, withdrawn within 2s"} {
		if got := (&DrainAnswer{Marked: marked}).RoutesLine(); got != want {
			t.Errorf("%d: %q, want %q", marked, got, want)
		}
	}
}

func TestRemaining(t *testing.T) {
	in := func(name string, connections, flows int) RemainingIn {
		return RemainingIn{"default", name, connections, flows}
	}
	for _, tt := range []struct {
		left Remaining
		want string
		none bool
	}{
		{Remaining{}, "nothing", true},
		{Remaining{Unknown: "syncs \x1b"}, `not known: syncs \x1b`, false},
		{Remaining{Services: []RemainingIn{in("web", 1, 0)}}, "1 connection: default/web 1", false},
		{Remaining{Services: []RemainingIn{in("dns", 0, 2)}}, "2 UDP flows: default/dns 2", false},
		{Remaining{Services: []RemainingIn{in("a", 1, 0), in("b", 1000, 1), in("c", 3, 0), in("d", 2, 0), in("e", 1, 0)}},
			"1,007 connections, 1 UDP flow: default/b 1001, default/c 3, default/d 2 and 2 services more", false},
	} {
		if got := tt.left.String(); got != tt.want || tt.left.None() != tt.none {
			t.Errorf("said %q, nothing left: %v; want %q", got, tt.left.None(), tt.want)
		}
	}
}
