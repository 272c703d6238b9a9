package layout

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/proxier/backendtest"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// mixed returns services with as many numbers of slots and timeouts, no two alike.
func mixed(services int) *policy.State {
	w := backendtest.NewWorld(policy.IPv4)
	for i := range services {
		s := backendtest.Service{
			Name: fmt.Sprintf("svc-%d", i), Protocol: source.TCP,
			Targets: backendtest.Targets(w.Family, 0, 1+i), Affinity: time.Duration(1+i/2) * time.Duration(i%2) * 5 * time.Minute,
		}
		pool, _ := s.Pools()
		route := backendtest.Route(pool, policy.NoOne, policy.Reject)
		res := s.Resolve(&policy.Frontend{Key: policy.FrontendKey{Addr: backendtest.Addr(w.Family, "vip", i), Port: 80}, Outside: route, Local: route})
		w.Put(res.Key, res)
	}
	return w.State
}

// longest returns how many rules a packet meets at most from a chain on.
func longest(chains map[string]*Chain, name string) int {
	met, most := 0, 0
	for _, r := range chains[name].rules {
		met++
		words := strings.Fields(r.String())
		for i, word := range words[:len(words)-1] {
			switch word {
			case "goto":
				most = max(most, met+longest(chains, words[i+1]))
			case "jump":
				met += longest(chains, words[i+1])
			}
		}
	}
	return max(most, met)
}

// However many numbers of slots and timeouts services have, a packet meets a
// bounded number of rules, and there is a bounded number of chains.
func TestRulesAreBounded(t *testing.T) {
	const (
		services = 550
		sizes    = exactSizes + 8*5 // up to 1,024 slots
		others   = 40
	)
	c := Render(Dialects[policy.IPv4], mixed(services))
	chains := map[string]*Chain{}
	for _, ch := range c.Chains {
		chains[ch.Name] = ch
	}
	if got := len(chains); got > 3*sizes+2*len(expiries)+others {
		t.Errorf("%d chains", got)
	}
	// What dispatches are the chains services and sticky, draw and forget.
	if got := longest(chains, "services"); got > 3*sizes+len(expiries)+others {
		t.Errorf("a packet meets %d rules", got)
	}
	plain := chains["services"].rules
	if got := len(plain); got > sizes+others {
		t.Errorf("a packet of a service without affinity meets %d rules", got)
	}
}
