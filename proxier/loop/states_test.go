package loop

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/policy/policytest"
	"svcproxy.dev/svcproxy/proxier/report"
	"svcproxy.dev/svcproxy/source"
)

// fixed is a Conditioner that knows the same of services at all times. An endpoint that fails
// does not answer, and one that is drained is so by root.
type fixed map[source.Key]policy.Conditions

func (f fixed) Use(key source.Key, _ *source.Service) policy.Conditions { return f[key] }
func (f fixed) Conditions(key source.Key) policy.Conditions             { return f[key] }

func (f fixed) Details(key source.Key) map[netip.AddrPort]policy.Detail {
	out := make(map[netip.AddrPort]policy.Detail)
	for at, c := range f[key] {
		d := policy.Detail{Since: time.Unix(1000, 0), Asked: time.Unix(1060, 0), Took: time.Millisecond}
		if c.Check == source.CheckFailed {
			d.Error = "no answer"
		}
		if c.Drained {
			d.Drain = &policy.Drain{Reason: "disk", By: "root", At: time.Unix(1030, 0), Until: time.Unix(1900, 0)}
		}
		out[at] = d
	}
	return out
}

// knowing has a Loop know that.
func knowing(f fixed) func(*Config) {
	return func(c *Config) { c.Conditions, c.Surroundings.Details = f, f.Details }
}

// What people are told of endpoints comes with since when, why, and who.
func TestStatusOfConditions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc := policytest.Service(policytest.Probed, policytest.Slowly, policytest.Endpoints("10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4 weight=2"))
		known := policytest.Conditions("10.0.0.1 passed", "10.0.0.2 failed", "10.0.0.3 passed drained", "10.0.0.4 passed share=4")
		l := start(t, &kernel{}, knowing(fixed{svc.Key: known}))
		l.Apply(source.Changes{Set: []source.Unit{{ID: source.UnitID{Source: "file", Name: "a"}, Services: []*source.Service{svc}}}})
		l.Synced("file")
		synctest.Wait()
		since, drained, check := time.Unix(1000, 0), time.Unix(1030, 0), func(result, err string) *report.CheckStatus {
			return &report.CheckStatus{Type: "tcp", Result: result, Since: time.Unix(1000, 0), Asked: time.Unix(1060, 0), Took: time.Millisecond, Error: err}
		}
		want := []report.EndpointStatus{
			{Address: "10.0.0.1:8080", State: "up", Weight: 1, Gets: 55.6, Since: since, Check: check("passed", "")},
			{Address: "10.0.0.2:8080", State: "down", Weight: 1, Since: since, Check: check("failed", "no answer")},
			{Address: "10.0.0.3:8080", State: "draining", Weight: 1, Since: drained, Check: check("passed", ""),
				Drain: &policy.Drain{Reason: "disk", By: "root", At: drained, Until: time.Unix(1900, 0)}},
			{Address: "10.0.0.4:8080", State: "slow start", Weight: 2, Gets: 44.4, Since: since, Share: 40, Check: check("passed", "")},
		}
		got := l.Status().Services[0].Endpoints
		for i := range got {
			got[i].Address = strings.TrimSuffix(got[i].Address, ":8080") + ":8080"
		}
		if diff := gocmp.Diff(want, got); diff != "" {
			t.Errorf("endpoints (-want +got):\n%s", diff)
		}
		c := l.Counts()
		if text := fmt.Sprint(c.Endpoints["up"], c.Endpoints["down"], c.Endpoints["draining"], c.Endpoints["slow start"]); text != "1 1 1 1" {
			t.Errorf("counted: %v", c.Endpoints)
		}
	})
}

// That all endpoints of a service fail is a problem, whether they are used or not, until one passes.
func TestAllFailingIsAProblem(t *testing.T) {
	for _, tt := range []struct {
		check           func(*source.Service)
		setting, action string
		reason          string

		returning string // the reason when one passes again, and another may
		targets   int    // then
	}{
		{policytest.Probed, "use_all", "balance", "no endpoint passes its check, so those that fail are used: 2",
			"endpoints pass their check again, and those that failed with them are used while they may follow", 2},
		{policytest.ProbedRefuse, "refuse", "reject", "no usable endpoint: 2 down, 1 draining", "", 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			svc := policytest.Service(tt.check, policytest.Endpoints("10.0.0.1", "10.0.0.2", "10.0.0.3"))
			known := fixed{svc.Key: policytest.Conditions("10.0.0.1 failed", "10.0.0.2 failed", "10.0.0.3 failed drained")}
			l := start(t, &kernel{}, knowing(known))
			l.Apply(source.Changes{Set: []source.Unit{{ID: source.UnitID{Source: "file", Name: "a"}, Services: []*source.Service{svc}}}})
			l.Synced("file")
			synctest.Wait()
			f := l.Status().Services[0].Frontends[0]
			if f.AllFailed != tt.setting || f.Action != tt.action || f.Reason != tt.reason {
				t.Errorf("status: %+v", f)
			}
			s := l.Summary(5)
			if len(s.Problems) != 1 || s.Problems[0].State != f.Trouble() || s.Problems[0].Reason != tt.reason+" (10.0.0.1: no answer)" {
				t.Errorf("summary: %+v", s.Problems)
			}
			if got := l.Counts().AllFailed; got[tt.setting] != 1 || len(got) != 1 {
				t.Errorf("counts: %v", got)
			}
			known[svc.Key] = policytest.Conditions("10.0.0.1 failing returning", "10.0.0.2 passed returning", "10.0.0.3 failed drained")
			l.Reconsider(svc.Key)
			synctest.Wait()
			f = l.Status().Services[0].Frontends[0]
			if f.AllFailed != "" || f.Action != "balance" || f.Reason != tt.returning || f.Targets != tt.targets {
				t.Errorf("when one passes again, and another may: %+v", f)
			}
			if s, c := l.Summary(5), l.Counts(); len(s.Problems) != 0 || len(c.AllFailed) != 0 {
				t.Errorf("when one passes again, and another may: %+v, %v", s.Problems, c.AllFailed)
			}
			known[svc.Key] = policytest.Conditions("10.0.0.1 failed", "10.0.0.2 passed", "10.0.0.3 failed drained")
			l.Reconsider(svc.Key)
			synctest.Wait()
			if s, c := l.Summary(5), l.Counts(); len(s.Problems) != 0 || len(c.AllFailed) != 0 {
				t.Errorf("when one passes: %+v, %v", s.Problems, c.AllFailed)
			}
			if f := l.Status().Services[0].Frontends[0]; f.Reason != "" || f.Targets != 1 {
				t.Errorf("when one passes: %+v", f)
			}
		})
	}
}

// A service that is disabled is no problem, and counted as what it is.
func TestDisabledIsNoProblem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := start(t, &kernel{})
		u := policytest.File("a", "x 10.96.0.1:80")
		u.Services[0].Disabled = true
		u.Services[0].Endpoints = []source.Endpoint{policytest.Endpoint("10.0.0.1")}
		l.Apply(policytest.Set(u))
		l.Synced("file")
		synctest.Wait()
		if s := l.Summary(5); s.Services != 1 || s.Disabled != 1 || len(s.Problems) != 0 || len(s.Actions) != 0 {
			t.Errorf("summary: %+v", s)
		}
		if svc := l.Status().Services[0]; !svc.Disabled || len(svc.Frontends) != 0 || svc.Endpoints[0].State != "disabled" {
			t.Errorf("status: %+v", svc)
		}
		if c := l.Counts(); c.Services["disabled"] != 1 || c.Services["none"] != 0 || c.Endpoints["disabled"] != 1 {
			t.Errorf("counts: %+v", c)
		}
	})
}
