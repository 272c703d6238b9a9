package layout

import (
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/netutil/ipset"
	"svcproxy.dev/svcproxy/netutil/xtables"
	"svcproxy.dev/svcproxy/proxier/backendtest"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// A picture is what a kernel would hold: chains by name, members by set.
type picture struct {
	chains  map[string]string
	members map[string]map[ipset.Entry]struct{}
}

func pictureOf(r *Rules, st *policy.State) picture {
	p := picture{map[string]string{}, map[string]map[ipset.Entry]struct{}{}}
	r.Chains(p.take)
	for name, m := range r.Sets(st) {
		p.members[name] = m.Entries
	}
	return p
}

func (p picture) take(_, name string, rules []byte) { p.chains[name] = string(rules) }

// apply does to the picture what a Kernel does to the kernel.
func (p picture) apply(r *Rules, ch *Changes) {
	if ch.All {
		clear(p.chains)
		r.Chains(p.take)
	}
	for name, rules := range ch.Chains {
		if ch.All {
			break
		}
		if rules == nil {
			delete(p.chains, name)
		} else {
			p.chains[name] = string(rules)
		}
	}
	for set, entries := range ch.Gained {
		for _, e := range entries {
			p.members[set][e] = struct{}{}
		}
	}
	for set, entries := range ch.Lost {
		for _, e := range entries {
			delete(p.members[set], e)
		}
	}
}

// check fails unless deltas gave what a reset gives.
func (p picture) check(rt *rapid.T, reset picture) {
	if reflect.DeepEqual(p, reset) { // which takes a fraction of the time that a difference does
		return
	}
	if diff := cmp.Diff(reset.chains, p.chains); diff != "" {
		rt.Fatalf("chains (-reset +deltas):\n%s", diff)
	}
	if diff := cmp.Diff(reset.members, p.members, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})); diff != "" {
		rt.Fatalf("sets (-reset +deltas):\n%s", diff)
	}
}

func families(t *testing.T, test func(*testing.T, policy.Family)) {
	for _, fam := range []policy.Family{policy.IPv4, policy.IPv6} {
		t.Run(fam.String(), func(t *testing.T) { test(t, fam) })
	}
}

// Whatever way leads to a State, its chains and sets are the same, and no rule needs
// what the host lacks.
func TestDeltasGiveWhatAResetGives(t *testing.T) {
	families(t, func(t *testing.T, fam policy.Family) {
		for name, rules := range map[string]func(policy.Family) *Rules{"iptables": NewRules, "ipvs": NewIPVSRules} {
			t.Run(name, func(t *testing.T) {
				rapid.Check(t, func(rt *rapid.T) { checkDeltas(rt, fam, rules) })
			})
		}
	})
}

func checkDeltas(rt *rapid.T, fam policy.Family, newRules func(policy.Family) *Rules) {
	pick := func(n int) int { return rapid.IntRange(0, n-1).Draw(rt, "pick") }
	w := backendtest.NewWorld(fam)
	r := newRules(fam)
	r.ipvsBalances = pick(2) == 0
	aside := &Unsupported{rules: r, missing: xtables.Missing{}}
	for _, name := range Optional {
		if pick(4) == 0 {
			aside.missing[name] = "not there"
		}
	}
	if err := r.Reset(aside.State(w.State)); err != nil {
		rt.Fatal(err)
	}
	got := pictureOf(r, w.State)
	for range pick(24) {
		change := map[source.Key]*policy.Resolved{}
		for range 1 + pick(3) {
			number := pick(16)
			key := source.Key{Namespace: "default", Name: fmt.Sprintf("svc-%d", number)}
			delta := w.Put(key, nil) // frontends of one may move to another in one step
			got.apply(r, r.Update(w.State, aside.Delta(delta)))
			change[key] = nil
			if pick(4) > 0 {
				change[key] = w.Random(pick, number)
				got.apply(r, r.Update(w.State, aside.Delta(w.Put(key, change[key]))))
			}
		}
		fresh := newRules(fam)
		fresh.ipvsBalances = r.ipvsBalances
		whole := &Unsupported{rules: fresh, missing: aside.missing}
		if err := fresh.Reset(whole.State(w.State)); err != nil {
			rt.Fatal(err)
		}
		got.check(rt, pictureOf(fresh, w.State))
		if diff := cmp.Diff(whole.why, aside.why); len(aside.missing) > 0 && diff != "" {
			rt.Fatalf("set aside (-reset +deltas):\n%s", diff)
		}
		checkChains(rt, got.chains, aside.missing)
	}
}

// checkChains sees that every chain has a name the kernel takes, is one line a
// rule, leads to chains that exist, is led to, and needs nothing that is lacking.
func checkChains(t interface{ Fatalf(string, ...any) }, chains map[string]string, lacking xtables.Missing) {
	led := map[string]bool{Services: true, Postrouting: true, Filter: true, Forward: true, Strays: true, NodePorts: true, MarkMasq: true, MarkNonLocal: true, masqueradeChain: true, firewallChain: true}
	for name, rules := range chains {
		if len(name) > maxChain || !strings.HasPrefix(name, Prefix) {
			t.Fatalf("bad name of a chain: %s", name)
		}
		for feature := range lacking {
			if strings.Contains(rules, "-m "+feature+" ") {
				t.Fatalf("chain %s needs %s:\n%s", name, feature, rules)
			}
		}
		for line := range strings.Lines(rules) {
			words := strings.Fields(line)
			if words[0] != "-A" || words[1] != name {
				t.Fatalf("chain %s has the line %q", name, line)
			}
			if target := words[len(words)-1]; strings.HasPrefix(target, Prefix) && (words[len(words)-2] == "-j" || words[len(words)-2] == "-g") {
				led[target] = true
				if _, ok := chains[target]; !ok {
					t.Fatalf("chain %s leads to %s, which is not there", name, target)
				}
			}
		}
	}
	for name := range chains {
		if !led[name] && !strings.HasPrefix(name, Prefix+"SV") && !strings.HasPrefix(name, Prefix+"PART") {
			t.Fatalf("nothing leads to chain %s", name)
		}
	}
}

// A tree too deep for nf_tables is cut off, and grows again when it may.
func TestDeepTreeIsCutOff(t *testing.T) {
	w := backendtest.NewWorld(policy.IPv6)
	r := NewRules(policy.IPv6)
	fatal.If(t, r.Reset(w.State))
	got := pictureOf(r, w.State)
	deepest := 0
	step := func(n int, res *policy.Resolved) {
		key := source.Key{Namespace: "default", Name: fmt.Sprintf("web-%d", n)}
		got.apply(r, r.Update(w.State, w.Put(key, res)))
		fresh := NewRules(policy.IPv6)
		fatal.If(t, fresh.Reset(w.State))
		if diff := cmp.Diff(pictureOf(fresh, w.State).chains, got.chains); diff != "" {
			t.Fatalf("step %d (-reset +deltas):\n%s", n, diff)
		}
		h := r.services.height(r.services.top())
		if h > maxDepth {
			t.Fatalf("step %d: chains %d deep", n, h)
		}
		deepest = max(deepest, h)
	}
	// One address that differs from all others at each of the 32 digits, deepest first.
	const n = 32
	for i := range n {
		a := netip.MustParseAddr("1111:1111:1111:1111:1111:1111:1111:1111").As16()
		a[(n-1-i)/2] ^= []byte{0x20, 0x02}[(n-1-i)%2]
		res := backendtest.Web(policy.IPv6, i, 1)
		res.Frontends[0].Key.Addr = netip.AddrFrom16(a)
		step(i, res)
	}
	if deepest != maxDepth || !r.services.flat {
		t.Errorf("deepest chain: got %d, want %d; flat %v", deepest, maxDepth, r.services.flat)
	}
	for i := range n - 4 {
		step(i, nil)
	}
	if r.services.flat {
		t.Error("the tree is flat although it need not be")
	}
}

// A change of one service touches few chains, however many there are.
func TestChangesAreSmall(t *testing.T) {
	w := backendtest.NewWorld(policy.IPv4)
	for i := range 5000 {
		res := backendtest.Web(policy.IPv4, i, 2)
		w.Put(res.Key, res)
	}
	r := NewRules(policy.IPv4)
	fatal.If(t, r.Reset(w.State))
	fewer := backendtest.Web(policy.IPv4, 2500, 1)
	ch := r.Update(w.State, w.Put(fewer.Key, fewer))
	if names := maps.Keys(ch.Chains); len(ch.Chains) != 1 {
		t.Errorf("an endpoint less: looked at chains %v", names)
	}
	before := pictureOf(r, w.State)
	fresh := backendtest.Web(policy.IPv4, 6000, 1)
	ch = r.Update(w.State, w.Put(fresh.Key, fresh))
	changed := 0
	for name, rules := range ch.Chains {
		if before.chains[name] != string(rules) {
			changed++
		}
	}
	if changed > 3 || len(ch.Chains) > 100 {
		t.Errorf("a service more: changed %d chains, looked at %d", changed, len(ch.Chains))
	}
	if n := len(ch.Gained["SVCP-VIPS-4"]); n != 1 || len(ch.Lost) != 0 {
		t.Errorf("a service more: gained %v, lost %v", ch.Gained, ch.Lost)
	}
}
