package layout_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"svcproxy.dev/svcproxy/proxier/backendtest"
	"svcproxy.dev/svcproxy/proxier/nftables/layout"
	"svcproxy.dev/svcproxy/proxier/nftables/nfttest"
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
		res := s.Resolve(&policy.Frontend{Key: policy.FrontendKey{Addr: backendtest.Addr(w.Family, "vip", i), Port: 80}, Outside: route, FromLocal: route})
		w.Put(res.Key, res)
	}
	return w.State
}

// rulesOf returns the rules of each chain, in the words of nft.
func rulesOf(st *policy.State) map[string][]string {
	chains := map[string][]string{}
	for _, line := range nfttest.Text(st) {
		if f := strings.SplitN(line, " ", 6); f[1] == "rule" { // add, what, family, table, chain, the rest
			chains[f[4]] = append(chains[f[4]], f[5])
		}
	}
	return chains
}

// longest returns how many rules a packet meets at most from a chain on.
func longest(chains map[string][]string, name string) int {
	met, most := 0, 0
	for _, rule := range chains[name] {
		met++
		words := strings.Fields(rule)
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
		sizes    = layout.ExactSizes + 8*5 // up to 1,024 slots
		others   = 40
	)
	chains := rulesOf(mixed(services))
	if got := len(chains); got > 3*sizes+2*len(layout.Expiries)+others {
		t.Errorf("%d chains", got)
	}
	// What dispatches are the chains services and sticky, draw and forget.
	if got := longest(chains, "services"); got > 3*sizes+len(layout.Expiries)+others {
		t.Errorf("a packet meets %d rules", got)
	}
	plain := chains["services"]
	if got := len(plain); got > sizes+others {
		t.Errorf("a packet of a service without affinity meets %d rules", got)
	}
}

// Services have the chains of one another: one for each size and each thing hashed.
func TestHashedChains(t *testing.T) {
	w := backendtest.NewWorld(policy.IPv6)
	for i, on := range []source.HashOn{source.ClientIP, source.ClientIPPort, source.ClientIP, source.ClientIPPort} {
		res := layout.HashedService(w.Family, on, backendtest.Targets(w.Family, 0, 1+i)...)
		res.Key.Name = string(rune('a' + i))
		res.Frontends[0].Key.Port += uint16(i)
		w.Put(res.Key, res)
	}
	got := map[string][]string{}
	for name, rules := range rulesOf(w.State) {
		if strings.HasPrefix(name, "pick-") {
			got[name] = rules
		}
	}
	want := map[string][]string{
		"pick-maglev-ip-8191": {
			"dnat ip6 to ip6 daddr . meta l4proto . th dport . jhash ip6 saddr mod 8191 seed 0x6d61676c map @maglev-ip-slots-8191"},
		"pick-maglev-ip-port-8191": {
			"dnat ip6 to ip6 daddr . meta l4proto . th dport . jhash ip6 saddr . th sport mod 8191 seed 0x6d61676c map @maglev-ip-port-slots-8191"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("chains (-want +got):\n%s", diff)
	}
}
