package loop

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/policy/policytest"
	"svcproxy.dev/svcproxy/proxier/report"
	"svcproxy.dev/svcproxy/source"
)

// A Summary says what a Status of all services says, of the first few.
func TestSummaryAgreesWithStatus(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		units := policytest.RandomServices(t)
		cfg := Config{Node: policytest.RandomNode(t), Log: slog.New(slog.DiscardHandler), Observer: Unobserved{}}
		knowing(randomConditions(t, units))(&cfg)
		l, k := New(cfg), &kernel{}
		services, _ := l.grantClaims([]source.Changes{{Set: units}})
		o := order{services: services, number: 1}
		for _, fam := range []policy.Family{policy.IPv4, policy.IPv6} {
			f := newFamily(fam, k, cfg.Node, &cfg, new(inbox), new(atomic.Uint64))
			f.handleOrder(o)
			if rapid.IntRange(0, 3).Draw(t, "synced") > 0 {
				f.done(&SyncResult{Family: fam})
			}
			if rapid.Bool().Draw(t, "unserved") {
				f.news.unserved = &proxier.PartialError{N: 1, Err: errors.New("no"), Frontends: map[policy.FrontendKey]bool{
					{Addr: netip.MustParseAddr("10.96.0.1"), Protocol: source.TCP, Port: 81}: rapid.Bool().Draw(t, "whole"),
				}}
			}
			l.families.list = append(l.families.list, f)
		}
		most := rapid.IntRange(0, 5).Draw(t, "most")
		got, want := l.Summary(most), counted(l.Status(), most)
		if diff := gocmp.Diff(want, got); diff != "" {
			t.Fatalf("summary of at most %d (-as counted +got):\n%s", most, diff)
		}
	})
}

// randomConditions gives services health checks, and says how their endpoints are.
func randomConditions(t *rapid.T, units []source.Unit) fixed {
	known := fixed{}
	for _, u := range units {
		svc := u.Services[0]
		svc.Disabled = rapid.IntRange(0, 5).Draw(t, "disabled") == 0
		if rapid.Bool().Draw(t, "unchecked") {
			continue
		}
		svc.HealthCheck = &source.HealthCheck{Type: source.CheckTCP, Refuse: rapid.Bool().Draw(t, "refuse")}
		known[svc.Key] = policy.Conditions{}
		for i := range svc.Endpoints {
			check := rapid.SampledFrom([]source.CheckResult{source.CheckPassed, source.CheckFailed, source.CheckFailed, source.CheckFailed}).Draw(t, "check")
			known[svc.Key][svc.EndpointAt(&svc.Endpoints[i])] = policy.Condition{Check: check}
		}
	}
	return known
}

// counted returns the Summary of a Status.
func counted(st report.Status, most int) report.Summary {
	s := report.Summary{Totals: report.Totals{Families: st.Families, Services: len(st.Services), Actions: make(map[string]int)}, Refusals: st.Refusals}
	for _, svc := range st.Services {
		name := svc.Namespace + "/" + svc.Name
		if svc.Disabled {
			s.Disabled++
		}
		for _, f := range svc.Frontends {
			s.Actions[f.Action]++
		}
		for _, f := range report.Runs(svc.Frontends) {
			if f.AllFailed != "" {
				i := slices.IndexFunc(svc.Endpoints, func(e report.EndpointStatus) bool { return e.State == "down" })
				f.Reason += " (" + svc.Endpoints[i].Address + ": no answer)"
			}
			if f.Action != "pending" && (f.Action != "balance" || f.AllFailed != "") {
				s.Problems = append(s.Problems, report.Problem{Subject: name, Address: f.Address, State: f.Trouble(), Reason: f.Reason, Place: svc.Place})
			}
		}
		slices.SortFunc(svc.Warnings, cmp.Compare[string])
		for _, w := range svc.Warnings {
			s.Warnings = append(s.Warnings, "service "+name+": "+w)
		}
	}
	if n := len(s.Problems); n > most {
		s.Problems, s.MoreProblems = s.Problems[:most:most], n-most
	}
	if n := len(s.Warnings); n > most {
		s.Warnings, s.MoreWarnings = s.Warnings[:most:most], n-most
	}
	if most == 0 {
		s.Problems, s.Warnings = nil, nil
	}
	return s
}

// Ports of a range that do not serve are one problem, and all of them are counted.
func TestSummaryOfARange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := start(t, &kernel{})
		u := policytest.File("a", "x 10.96.0.1:80")
		x := u.Services[0]
		x.Ports = nil
		for _, n := range []uint16{80, 8000, 8001, 8002, 8003, 8004, 9000, 9001, 9002} {
			for _, p := range []source.Protocol{source.TCP, source.UDP} {
				x.Ports = append(x.Ports, source.Port{Name: fmt.Sprintf("%s-%d", p, n), Protocol: p, Port: n, TargetPort: n})
			}
		}
		x.Endpoints = nil
		l.Apply(policytest.Set(u))
		l.Synced("file")
		synctest.Wait()
		s := l.Summary(100)
		var got []string
		for _, p := range s.Problems {
			got = append(got, p.Address)
		}
		want := []string{
			"10.96.0.1:80/tcp", "10.96.0.1:8000-8004/tcp", "10.96.0.1:9000/tcp", "10.96.0.1:9001/tcp", "10.96.0.1:9002/tcp",
			"10.96.0.1:80/udp", "10.96.0.1:8000-8004/udp", "10.96.0.1:9000/udp", "10.96.0.1:9001/udp", "10.96.0.1:9002/udp",
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) || s.Actions["reject"] != 18 {
			t.Errorf("problems %q, actions %v", got, s.Actions)
		}
		frontends := l.Status().Services[0].Frontends
		if rows := report.Runs(frontends); len(rows) != len(want) || len(frontends) != 18 {
			t.Errorf("%d frontends are %d rows: %v", len(frontends), len(rows), rows)
		}
	})
}

// While syncs fail nobody is told more than that; what waits for its sync is no problem.
func TestSummaryOfWhatIsPending(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &kernel{}
		l := start(t, k)
		k.failWith(errors.New("no"))
		l.Apply(policytest.Set(policytest.File("a", "x 10.96.0.1:80", "y 10.96.0.2:80")))
		l.Synced("file")
		synctest.Wait()
		s := l.Summary(10)
		if s.Actions["pending"] != 2 || len(s.Problems) != 0 || s.Families[0].Error == "" {
			t.Errorf("while syncs fail: %+v", s)
		}
		if got := l.Status().Services[0].Frontends[0].Reason; got != "syncs fail, and what the kernel holds is not known" {
			t.Errorf("reason %q", got)
		}
		k.failWith(nil)
		time.Sleep(time.Minute)
		s = l.Summary(1)
		if s.Actions["reject"] != 2 || len(s.Problems) != 1 || s.MoreProblems != 1 || s.Problems[0].Reason != "no endpoints" || s.Problems[0].Place != "a:1:1" {
			t.Errorf("after that: %+v", s)
		}
	})
}

// Only services that are asked for are looked at; warnings need all.
func TestStatusOfSelectedServices(t *testing.T) {
	l := New(Config{Node: policytest.Node()})
	a, b := policytest.File("a", "x 10.96.0.1:80"), policytest.File("b", "y 10.96.0.2:80")
	a.Services[0].Endpoints = []source.Endpoint{policytest.Endpoint("10.96.0.2")} // a VIP of y
	l.grantClaims([]source.Changes{policytest.Set(a, b)})
	all := l.Status().Services
	if len(all) != 2 || len(all[0].Warnings) != 1 {
		t.Fatalf("all: %+v", all)
	}
	for i, name := range []string{"x", "y"} {
		got := report.StatusOf(l.Snapshot(), func(s *source.Service) bool { return s.Name == name }).Services
		if diff := gocmp.Diff(all[i:i+1], got); diff != "" {
			t.Errorf("%s (-among all +alone):\n%s", name, diff)
		}
	}
}

// What people are told of a service changes in status at once, and nothing else does: no family has to sync.
func TestStatusOfNotes(t *testing.T) {
	l := New(Config{Node: policytest.Node()})
	l.grantClaims([]source.Changes{policytest.Set(policytest.File("a", "x 10.96.0.1:80"))})
	now := policytest.File("a", "x 10.96.0.1:80")
	now.Services[0].Description, now.Services[0].Labels = "the shop", map[string]string{"team": "web"}
	if changed, _ := l.grantClaims([]source.Changes{policytest.Set(now)}); len(changed) > 0 {
		t.Errorf("families are told of %v", changed)
	}
	st := l.Status().Services[0]
	if st.Description != "the shop" || st.Labels["team"] != "web" {
		t.Errorf("status has %q and %v", st.Description, st.Labels)
	}
	if labels := report.Labels(l.Snapshot()); len(labels) != 1 || labels[now.Services[0].Key]["team"] != "web" {
		t.Errorf("labels: %v", labels)
	}
}

// manyServices returns a Loop that holds n services of 10 endpoints and an address of
// each family; one in 5,000 rejects in one family.
func manyServices(n int) *Loop {
	node := policytest.Node()
	cfg := Config{Node: node, Log: slog.New(slog.DiscardHandler), Observer: Unobserved{}}
	l, u := New(cfg), source.Unit{ID: source.UnitID{Source: "file", Name: "big.json"}}
	for i := range n {
		s := policytest.Service(func(s *source.Service) {
			s.Name = fmt.Sprintf("svc-%05d", i)
			s.VIPs = []netip.Addr{netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}), netip.AddrFrom16([16]byte{0: 0xfd, 14: byte(i >> 8), 15: byte(i)})}
		})
		for j := range 10 {
			a := netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(j)})
			if j%2 == 1 && i%5000 != 7 {
				a = netip.AddrFrom16([16]byte{0: 0xfd, 1: 1, 14: byte(i >> 8), 15: byte(j)})
			}
			s.Endpoints = append(s.Endpoints, source.Endpoint{Addr: a, Weight: 1, Ready: true, Serving: true})
		}
		u.Services = append(u.Services, s)
	}
	services, _ := l.grantClaims([]source.Changes{{Set: []source.Unit{u}}})
	o := order{services: services, number: 1}
	for _, fam := range []policy.Family{policy.IPv4, policy.IPv6} {
		f := newFamily(fam, &kernel{}, node, &cfg, new(inbox), new(atomic.Uint64))
		f.handleOrder(o)
		f.done(&SyncResult{Family: fam})
		l.families.list = append(l.families.list, f)
	}
	return l
}

// What status asks of a Loop with 10,000 services: everything, one service, a summary.
func BenchmarkStatus(b *testing.B) {
	l := manyServices(10_000)
	b.Run("all", func(b *testing.B) {
		for b.Loop() {
			l.Status()
		}
	})
	b.Run("one", func(b *testing.B) {
		for b.Loop() {
			report.StatusOf(l.Snapshot(), func(s *source.Service) bool { return s.Name == "svc-00042" })
		}
	})
	b.Run("summary", func(b *testing.B) {
		for b.Loop() {
			l.Summary(10)
		}
	})
}
