package explain

import (
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// What is known of endpoints beside their file has its part in what is said of a packet.
func TestConditionsOfEndpointsAreExplained(t *testing.T) { synctest.Test(t, testConditions) }

func testConditions(t *testing.T) {
	const one, two = "192.168.10.11", "192.168.10.12"
	down, passed := policy.Condition{Check: source.CheckFailed}, policy.Condition{Check: source.CheckPassed}
	checked := func(s *source.Service) { s.HealthCheck = &source.HealthCheck{Type: source.CheckTCP} }
	refuse := func(s *source.Service) { s.HealthCheck = &source.HealthCheck{Type: source.CheckTCP, Refuse: true} }
	for _, tt := range []struct {
		name     string
		change   func(*source.Service)
		one, two policy.Condition
		detail   policy.Detail // of two
		verdict  string
		choice   []string // the lines of step 3
	}{
		{name: "one is down", change: checked, one: passed, two: down,
			detail:  policy.Detail{Since: time.Now().Add(-12 * time.Second), Asked: time.Now(), Error: "connect timed out"},
			verdict: "works", choice: []string{one + ":8080 gets 100%", two + ":8080 not used: DOWN: connect timed out (for 12s) (endpoint 2 of default/web)"}},
		{name: "one comes back", change: checked, one: passed, two: down, detail: policy.Detail{Asked: time.Now()},
			verdict: "works", choice: []string{one + ":8080 gets 100%", two + ":8080 not used: DOWN: its last answer was good, and more have to be (endpoint 2 of default/web)"}},
		{name: "all are down", change: checked, one: down, two: down, detail: policy.Detail{Error: "no"},
			verdict: "works, unless: no endpoint answers, as their check says: " + one + ":8080 DOWN (3)",
			choice: []string{one + ":8080 gets 50%, though DOWN", two + ":8080 gets 50%, though DOWN: no",
				"no endpoint passes its check, and all_failed is use_all: those that fail are used"}},
		{name: "one passes again, and the other may", change: checked, one: policy.Condition{Check: source.CheckPassed, Returning: true},
			two: policy.Condition{Check: source.CheckFailed, Returning: true}, verdict: "works",
			choice: []string{one + ":8080 gets 50%", two + ":8080 gets 50%, though DOWN",
				"all endpoints have failed, and some pass their check again: those that failed with them are used while they may follow"}},
		{name: "all are down, and refused", change: refuse, one: down, two: down,
			verdict: "refused: no usable endpoint: 2 down (3); " + one + ":8080 DOWN",
			choice:  []string{one + ":8080 not used: DOWN (endpoint 1 of default/web)", two + ":8080 not used: DOWN (endpoint 2 of default/web)"}},
		{name: "no result yet", change: checked, one: passed,
			verdict: "works", choice: []string{one + ":8080 gets 100%", two + ":8080 not used: checking: its check has no result yet (endpoint 2 of default/web)"}},
		{name: "no result at all", change: checked, verdict: "works",
			choice: []string{one + ":8080 gets 50%, though its check has no result yet", two + ":8080 gets 50%, though its check has no result yet"}},
		{name: "drained", two: policy.Condition{Drained: true},
			detail:  policy.Detail{Drain: &policy.Drain{Reason: "disk\x1b[2J", By: "alice", At: time.Now().Add(-2 * time.Minute), Until: time.Now().Add(13 * time.Minute)}},
			verdict: "works", choice: []string{one + ":8080 gets 100%", two + `:8080 not used: draining, by alice for 2m0s: disk` + "\x1b[2J" + `, 13m0s left (endpoint 2 of default/web)`}},
		{name: "all are drained", one: policy.Condition{Drained: true}, two: policy.Condition{Drained: true},
			verdict: "refused: no usable endpoint: 2 draining (3); " + one + ":8080 draining",
			choice:  []string{one + ":8080 not used: draining (endpoint 1 of default/web)", two + ":8080 not used: draining (endpoint 2 of default/web)"}},
		{name: "slow start", change: func(s *source.Service) { s.SlowStart = time.Minute }, two: policy.Condition{Share: 2},
			verdict: "works", choice: []string{one + ":8080 gets 83.3%", two + ":8080 gets 16.7%, in a slow start: with 20% of its weight"}},
		{name: "backup", change: func(s *source.Service) { s.Endpoints[1].Tier, s.MinUp = 1, 1 },
			verdict: "works", choice: []string{one + ":8080 gets 100%", two + ":8080 not used: backup of tier 1, used when fewer than 1 of lower tiers are usable (endpoint 2 of default/web)"}},
		{name: "backup in use", change: func(s *source.Service) { s.Endpoints[1].Tier, s.Endpoints[0].Disabled = 1, true },
			verdict: "works", choice: []string{two + ":8080 gets 100%, backup of tier 1", one + ":8080 not used: disabled (endpoint 1 of default/web)"}},
	} {
		s := service()
		if tt.change != nil {
			tt.change(s)
		}
		w := world(s)
		w.Services[0].Conditions = policy.Conditions{s.EndpointAt(&s.Endpoints[0]): tt.one, s.EndpointAt(&s.Endpoints[1]): tt.two}
		w.Details = func(source.Key) map[netip.AddrPort]policy.Detail {
			return map[netip.AddrPort]policy.Detail{s.EndpointAt(&s.Endpoints[1]): tt.detail}
		}
		r := ask(t, w, &fakeHost{sysctls: map[string]string{}}, client, "10.96.0.10:80", "")
		if r.Verdict != tt.verdict {
			t.Errorf("%s:\n got: %s\nwant: %s", tt.name, r.Verdict, tt.verdict)
		}
		if got, want := strings.Join(r.Steps[2].Lines, "\n"), strings.Join(tt.choice, "\n"); got != want {
			t.Errorf("%s:\n%s\nwant:\n%s", tt.name, got, want)
		}
	}
}

// A service that is disabled is named, and who asks no daemon is told what is not known.
func TestDisabledAndUnknown(t *testing.T) {
	off := service()
	off.Disabled = true
	host := &fakeHost{sysctls: map[string]string{}}
	if got, want := ask(t, world(off), host, client, "10.96.0.10:80", "").Verdict, "untouched: no service has 10.96.0.10:80/tcp (1); default/web (web.toml:1), which has it, is disabled"; got != want {
		t.Errorf("got:  %s\nwant: %s", got, want)
	}
	s := service()
	s.HealthCheck = &source.HealthCheck{Type: source.CheckTCP}
	r := ask(t, world(s), host, client, "10.96.0.10:80", "")
	if got := strings.Join(r.Steps[2].Lines, "\n"); r.Verdict != "works" || !strings.HasSuffix(got, "\nwhat health checks say is known to the daemon only, and none was asked") {
		t.Errorf("without a daemon: %s\n%s", r.Verdict, got)
	}
}
