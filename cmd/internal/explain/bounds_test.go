package explain

import (
	"net/netip"
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/netutil/ruleset"
)

// Of 100 endpoints the way to some is looked at, and there are not 100 lines.
func TestManyEndpointsAreSampled(t *testing.T) {
	s, h := service(), &fakeHost{sysctls: map[string]string{}}
	for i := range 5000 {
		e := s.Endpoints[0]
		e.Addr = netip.AddrFrom4([4]byte{172, 16, byte(i >> 8), byte(i)})
		e.Weight = uint16(i % 2)
		s.Endpoints = append(s.Endpoints, e)
	}
	r := ask(t, world(s), h, client, "10.96.0.10:80", "")
	lines := 0
	for _, step := range r.Steps {
		lines += len(step.Lines)
	}
	const want = "works, unless: it goes to one of 2470 endpoints whose way was not looked at (5)"
	if r.Verdict != want {
		t.Errorf("got: %s\nwant: %s", r.Verdict, want)
	}
	if lines > 3*maxLines || len(h.asked) > maxEndpoints+2 {
		t.Errorf("%d lines, %d routes", lines, len(h.asked))
	}
}

// Of many endpoints those count whose way was looked at.
func TestBlockedOfManyEndpoints(t *testing.T) {
	s, h := service(), &fakeHost{sysctls: map[string]string{}}
	for i := range 100 {
		e := s.Endpoints[0]
		e.Addr = netip.AddrFrom4([4]byte{172, 16, 0, byte(i)})
		s.Endpoints = append(s.Endpoints, e)
	}
	h.noRoute = []netip.Addr{addr("172.16.0.5")}
	r := ask(t, world(s), h, client, "10.96.0.10:80", "")
	if want := "works for 31 of 32 endpoints only: "; !strings.HasPrefix(r.Verdict, want) || !strings.Contains(r.Verdict, "70 endpoints") {
		t.Errorf("got %s, want %s", r.Verdict, want)
	}
}

// A mark that one chain of others sets is met by the next, and rules that were not followed
// are told of.
func TestChainsInOrder(t *testing.T) {
	s, h := service(), &fakeHost{sysctls: map[string]string{}}
	second := base("filter", "forward", 5, ruleset.Verdict{})
	second.Chains["c"] = []ruleset.Rule{dropsMarked{}}
	first := base("filter", "prerouting", -90, ruleset.Verdict{Marks: true})
	h.rules.Bases = []*ruleset.Base{second, first}
	r := ask(t, world(s), h, client, "10.96.0.10:80", "")
	if want := `works, unless: may be dropped by inet fw c, rule "a rule" (6)`; r.Verdict != want {
		t.Errorf("got: %s\nwant: %s", r.Verdict, want)
	}
	h.rules.Bases = []*ruleset.Base{base("filter", "forward", 0, ruleset.Verdict{Kind: ruleset.Jump, Chain: "c"})}
	r = ask(t, world(s), h, client, "10.96.0.10:80", "")
	if want := "works, unless: may be met by more rules than are followed, and stopped by inet fw c"; !strings.HasPrefix(r.Verdict, want) {
		t.Errorf("got: %s\nwant: %s", r.Verdict, want)
	}
}

// dropsMarked drops packets with a mark.
type dropsMarked struct{ rule }

func (dropsMarked) Eval(p *ruleset.Packet) (ruleset.Match, ruleset.Verdict) {
	if p.AnyMark {
		return ruleset.Maybe, ruleset.Verdict{Kind: ruleset.Drop}
	}
	return ruleset.No, ruleset.Verdict{}
}
