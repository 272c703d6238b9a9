package policy_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"regexp"
	"testing"

	proxierpolicy "svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/test/policy"
	"svcproxy.dev/svcproxy/test/policy/program"
)

var (
	seed   = flag.Uint64("seed", 1, "the first world")
	worlds = flag.Int("worlds", 10000, "how many worlds are drawn")
)

// packetsOfWorld is how many packets are tried in each world.
const packetsOfWorld = 20

// TestResolve compares what Resolve decides with what is legal, for random packets in random worlds.
func TestResolve(t *testing.T) {
	verdicts := map[policy.Verdict]int{}
	for n := *seed; n < *seed+uint64(*worlds); n++ {
		d := policy.Draw(n)
		w := d.World()
		states := statesOf(w)
		for range packetsOfWorld {
			p := d.Packet(w)
			legal, got := policy.Legal(w, p), program.Answer(states[p.To.Addr().Is4()], p)
			for o := range legal {
				verdicts[o.Verdict]++
			}
			if !legal.Equal(got) {
				t.Fatalf("seed %d: %+v\nlegal %v\n  got %v\n%s", n, p, legal, got, describe(w))
			}
		}
	}
	for _, v := range []policy.Verdict{policy.Balanced, policy.Refused, policy.Dropped, policy.Untouched} {
		if verdicts[v] == 0 {
			t.Errorf("no packet was %s", v)
		}
	}
	t.Log(*worlds, "worlds,", *worlds*packetsOfWorld, "packets:", verdicts)
}

func describe(w *policy.World) (text string) {
	text = fmt.Sprintf("host %+v\n", w.Host)
	for _, s := range w.Services {
		fields, _ := json.Marshal(s)
		short := regexp.MustCompile(`"[A-Za-z]+":(null|0|""|false|\{[^{}:]*\}),?`).ReplaceAllString(string(fields), "")
		text += fmt.Sprintf("service %s\nknown %+v\n", short, w.Known[s.Key])
	}
	return text
}

// statesOf resolves a world for both families.
func statesOf(w *policy.World) map[bool]*proxierpolicy.State {
	node := program.Node(&w.Host)
	states := map[bool]*proxierpolicy.State{}
	for _, fam := range []proxierpolicy.Family{proxierpolicy.IPv4, proxierpolicy.IPv6} {
		st := proxierpolicy.NewState(fam, node, nil)
		for _, s := range w.Services {
			known := proxierpolicy.Conditions{}
			for at, k := range w.Known[s.Key] {
				known[at] = proxierpolicy.Condition{Check: source.CheckResult(k.Check), Drained: k.Drained, Share: uint8(k.Share)}
			}
			put(st, proxierpolicy.Resolve(s, known, node, fam))
		}
		states[fam == proxierpolicy.IPv4] = st
	}
	return states
}

// put adds a service, which may have nothing in the family.
func put(st *proxierpolicy.State, res *proxierpolicy.Resolved) {
	if res == nil {
		return
	}
	st.Services[res.Key] = res
	for _, a := range res.RefusedAddrs {
		st.RefusedAddrs[a]++
	}
	for _, pool := range res.HairpinPools {
		for _, target := range pool.Targets {
			st.Hairpins[proxierpolicy.NewHairpin(target.AddrPort(), pool.Protocol)]++
		}
	}
}
