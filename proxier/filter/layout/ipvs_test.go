package layout

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/netutil/ipset"
	"svcproxy.dev/svcproxy/netutil/xtables"
	"svcproxy.dev/svcproxy/proxier/backendtest"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// ipvsRules are rules of ipvs mode that follow a world.
type ipvsRules struct {
	*Rules
	rt   *rapid.T
	pick backendtest.Pick
	w    *backendtest.World
	got  picture
}

// checkIPVS does random steps. After each the rules hold what those of a reset do, which
// withhold what a step returns.
func checkIPVS(t *testing.T, step func(*ipvsRules) (withheld map[ipset.Entry]bool)) {
	checkSteps(t, NewIPVSRules, step)
}

func checkSteps(t *testing.T, newRules func(policy.Family) *Rules, step func(*ipvsRules) (withheld map[ipset.Entry]bool)) {
	families(t, func(t *testing.T, fam policy.Family) {
		rapid.Check(t, func(rt *rapid.T) {
			pick := func(n int) int { return rapid.IntRange(0, n-1).Draw(rt, "pick") }
			r := &ipvsRules{newRules(fam), rt, pick, backendtest.NewWorld(fam), picture{}}
			if err := r.Reset(r.w.State); err != nil {
				rt.Fatal(err)
			}
			r.got = pictureOf(r.Rules, r.w.State)
			for range pick(12) {
				withheld := step(r)
				fresh := newRules(fam)
				if err := fresh.Reset(r.w.State); err != nil {
					rt.Fatal(err)
				}
				fresh.Withhold(withheld, nil)
				r.got.check(rt, pictureOf(fresh, r.w.State))
			}
		})
	})
}

// A node port and an address of this host may overlap. The frontend that is balanced there by
// IPVS, or not for everybody, is alone in rules and sets, however that came about; and sets admit
// to what a restricted one leaves to a node port who may use both.
func TestAddressMeetsNodePort(t *testing.T) {
	for name, newRules := range map[string]func(policy.Family) *Rules{"iptables": NewRules, "ipvs": NewIPVSRules} {
		t.Run(name, func(t *testing.T) { checkSteps(t, newRules, meet) })
	}
}

// meet is a step in which services come to, or leave, the same places.
func meet(r *ipvsRules) map[ipset.Entry]bool {
	change := map[source.Key]*policy.Resolved{}
	for range 1 + r.pick(3) {
		res := meeting(r.w, r.pick)
		if change[res.Key] = res; r.pick(4) == 0 {
			change[res.Key] = nil
		}
	}
	r.got.apply(r.Rules, r.Update(r.w.State, r.w.PutAll(change)))
	for _, res := range r.w.Services {
		checkAlone(r.rt, r.Rules, r.got, res.Frontends[0])
		checkAdmitted(r.rt, r.Rules, r.got, res.Frontends[0])
	}
	return nil
}

// checkAdmitted fails if sets admit others to what a frontend limits than those who may use it,
// and the node port that gets it.
func checkAdmitted(rt *rapid.T, r *Rules, p picture, f *policy.Frontend) {
	if !limits(f) {
		return
	}
	e, want := entryOf(f), f.SourceRanges
	if other := r.overlaps.nodePorts[portOf(f)]; other != nil && other.Restricted && slices.Contains(r.host.Addrs(other), e.Addr) {
		want = policy.InBoth(want, other.SourceRanges)
	}
	var got []netip.Prefix
	for m := range p.members[r.words.Set(rangesSet)] {
		if m.Addr == e.Addr && m.Port == e.Port {
			got = append(got, m.Net)
		}
	}
	if slices.SortFunc(got, netip.Prefix.Compare); !slices.Equal(got, want) {
		rt.Fatalf("%v of %v is for %v, want %v", e, f.ServicePort, got, want)
	}
	if _, in := p.members[r.words.Set(FirewalledSet)][e]; !in {
		rt.Fatalf("%v of %v is for everybody", e, f.ServicePort)
	}
}

// meeting returns a service that is at one of few places, as an address or as a node port.
func meeting(w *backendtest.World, pick backendtest.Pick) *policy.Resolved {
	n, kind := pick(2), []policy.Kind{policy.External, policy.NodePort}[pick(2)]
	s := backendtest.Service{Name: fmt.Sprintf("%s-%d", kind, n), Protocol: source.TCP}
	s.Targets = backendtest.Targets(w.Family, 100*n+10*int(kind), pick(3))
	s.Local = s.Targets[:min(len(s.Targets), pick(2))]
	cluster, local := s.Pools()
	own := []netip.Addr{w.Host.NodePortAddrs[0], backendtest.Addr(w.Family, "external", 7)} // of this host
	f := &policy.Frontend{Key: policy.FrontendKey{Addr: own[pick(2)], Port: uint16(30000 + n), Kind: kind}}
	if kind == policy.NodePort {
		f.Key.Addr = w.Family.Unspecified()
		if f.Placed = pick(2) == 0; f.Placed {
			f.NodePortAddrs = own
		}
	}
	f.FromLocal = backendtest.Route(cluster, policy.Masquerade(pick(4)), policy.Reject)
	if f.Outside = f.FromLocal; pick(2) == 0 {
		f.Outside = backendtest.Route(local, policy.NoOne, policy.Drop)
	}
	if f.Restricted = pick(2) == 0; f.Restricted {
		f.SourceRanges = meetingRanges(w.Family)[pick(4)]
	}
	res := s.Resolve(f)
	res.BoundAddrs = nil
	return res
}

// meetingRanges returns lists of which some have something in common.
func meetingRanges(fam policy.Family) [4][]netip.Prefix {
	texts := []string{"198.51.100.0/24", "198.51.100.0/28", "203.0.113.0/25"}
	if fam == policy.IPv6 {
		texts = []string{"2001:db8:51::/48", "2001:db8:51::/64", "2001:db8:52::/49"}
	}
	var p []netip.Prefix
	for _, text := range texts {
		p = append(p, netip.MustParsePrefix(text))
	}
	return [4][]netip.Prefix{{p[0], p[2]}, {p[1]}, {p[2]}, nil}
}

// checkAlone fails if another service has a part in what is balanced for an address.
func checkAlone(rt *rapid.T, r *Rules, p picture, f *policy.Frontend) {
	if !r.takesAny(f) {
		return
	}
	own := map[string]bool{}
	for _, set := range r.setsOf(f) {
		own[r.words.Set(set)] = true
	}
	own[r.words.Set(FirewalledSet)] = f.Restricted
	e := ipset.Entry{Addr: f.Key.Addr, Protocol: uint8(f.Key.Protocol), Port: f.Key.Port}
	for set, members := range p.members {
		if _, in := members[e]; in != own[set] {
			rt.Fatalf("%v of %v is in %s: %v, want %v", e, f.ServicePort, set, in, own[set])
		}
	}
	if !r.takesNodePort(f) { // only node ports that are in a set there are served by it
		return
	}
	end := fmt.Sprintf("--dport %d -m comment --comment \"%s\" -j ACCEPT\n", f.Key.Port, f.ServicePort)
	text := p.chains[Services]
	at := strings.Index(text, end)
	if ports := strings.Index(text, "-j "+NodePorts); at < 0 || ports < at {
		rt.Fatalf("packets to %v of %v go on to node ports:\n%s", e, f.ServicePort, text)
	}
}

// Servers are missing, and exist again, whether or not their frontends
// are part of a change.
func TestWithheldMembersFollow(t *testing.T) {
	checkIPVS(t, func(r *ipvsRules) map[ipset.Entry]bool {
		number := r.pick(4)
		delta := &policy.Delta{} // a repair comes with none
		if r.pick(2) == 0 {
			delta = r.w.Put(source.Key{Namespace: "default", Name: fmt.Sprintf("svc-%d", number)}, r.w.Random(r.pick, number))
		}
		ch := r.Update(r.w.State, delta)
		late := r.TakeServed(ch)
		guards := r.TakeGuards(ch, lacking(r.Rules, r.pick))
		r.follow(ch)
		withheld := lacking(r.Rules, r.pick)
		r.Withhold(withheld, late)
		r.follow(late)
		r.follow(guards)
		return withheld
	})
}

// follow does to the picture what a Kernel does to the kernel, whose mirror counts
// members: none may come that is there, nor go that is not.
func (r *ipvsRules) follow(ch *Changes) {
	checkServed(r.rt, r.Rules, r.got, ch)
	r.got.apply(r.Rules, ch)
}

// checkServed fails if members come that are there, or go that are not: a mirror
// of the set counts them.
func checkServed(rt *rapid.T, r *Rules, p picture, ch *Changes) {
	name := r.words.Set(servedSet)
	for _, e := range ch.Gained[name] {
		if _, has := p.members[name][e]; has {
			rt.Fatalf("%v is gained twice", e)
		}
	}
	for _, e := range ch.Lost[name] {
		if _, has := p.members[name][e]; !has {
			rt.Fatalf("%v is lost, and was not there", e)
		}
	}
}

// lacking returns some of the frontends that would be served.
func lacking(r *Rules, pick func(int) int) map[ipset.Entry]bool {
	out := map[ipset.Entry]bool{}
	members := slices.SortedFunc(maps.Keys(r.members), func(a, b member) int { return slices.Compare([]byte(a.String()), []byte(b.String())) })
	for _, m := range members {
		if m.set == servedSet && pick(3) == 0 {
			out[m.Entry] = true
		}
	}
	return out
}

// A frontend waits for rules until packets pass some that restrict it, and masquerade, as the state asks.
func TestFrontendsWaitForTheirGuards(t *testing.T) {
	w := backendtest.NewWorld(policy.IPv4)
	restricted, masqueraded, plain := backendtest.Web(policy.IPv4, 0, 1), backendtest.Web(policy.IPv4, 1, 1), backendtest.Web(policy.IPv4, 2, 1)
	restricted.Frontends[0].Restricted = true
	for _, res := range []*policy.Resolved{restricted, plain} {
		f := res.Frontends[0]
		f.Outside.Masquerade, f.FromLocal.Masquerade = policy.NoOne, policy.NoOne
	}
	r := NewIPVSRules(policy.IPv4)
	for _, res := range []*policy.Resolved{restricted, masqueraded, plain} {
		w.Put(res.Key, res)
	}
	fatal.If(t, r.Reset(w.State))
	passed := map[string]*xtables.Table{"nat": xtables.NewTable(), "filter": xtables.NewTable()}
	passed["filter"].Jumps["INPUT"] = []string{"-j " + Filter}
	passed["nat"].Jumps["PREROUTING"] = []string{"-j " + masqueradeChain}
	passed["nat"].Jumps["OUTPUT"] = []string{"-j " + masqueradeChain}
	flushed := map[string]*xtables.Table{"nat": xtables.NewTable(), "filter": xtables.NewTable()}
	elsewhere := map[string]*xtables.Table{"nat": xtables.NewTable(), "filter": passed["filter"]}
	elsewhere["nat"].Jumps["PREROUTING"], elsewhere["nat"].Jumps["OUTPUT"] = []string{"-j " + Services}, passed["nat"].Jumps["OUTPUT"]
	outside := map[string]*xtables.Table{"nat": xtables.NewTable(), "filter": passed["filter"]}
	outside["nat"].Jumps["PREROUTING"] = passed["nat"].Jumps["PREROUTING"]
	all := heldBy(r, w.State).Sets
	other := maps.Clone(all) // masquerades other sources
	other["SVCP-MASQ-ALL-4"], other["SVCP-MASQ-NONLOCAL-4"] = &ipset.Listing{}, all["SVCP-MASQ-ALL-4"]
	byIPTables := map[string]*ipset.Listing{vipsSet + "-4": {}, "SVCP-FIREWALLED-4": {}}
	for _, tt := range []struct {
		what                    string
		held                    *Actual
		restricted, masqueraded bool
	}{
		{"nothing", &Actual{}, true, true},
		{"empty sets", &Actual{passed, map[string]*ipset.Listing{"SVCP-FIREWALLED-4": {}, "SVCP-MASQ-ALL-4": {}}}, true, true},
		{"sets only", &Actual{flushed, all}, true, true},
		{"other jumps of the nat table", &Actual{elsewhere, all}, false, true},
		{"no jump of host processes", &Actual{outside, all}, false, true},
		{"other sources to masquerade", &Actual{passed, other}, false, true},
		{"all", &Actual{passed, all}, false, false},
		{"what iptables mode made", &Actual{passed, byIPTables}, true, false},
	} {
		got := r.Unguarded(tt.held)
		want := map[ipset.Entry]bool{}
		if tt.restricted {
			want[entryOf(restricted.Frontends[0])] = true
		}
		if tt.masqueraded {
			want[entryOf(masqueraded.Frontends[0])] = true
		}
		if !maps.Equal(got, want) {
			t.Errorf("the kernel holds %s: unguarded %v, want %v", tt.what, got, want)
		}
	}
}

// While IPVS balances to what leaves a frontend, sets keep who may use it and whom to masquerade, whether a
// change takes that away or the kernel holds it. Ranges go at once if others take their place.
func TestGuardsOutliveTheirFrontends(t *testing.T) {
	all := []string{"SVCP-FIREWALLED-4", "SVCP-MASQ-ALL-4", "SVCP-RANGES-4"}
	for _, tt := range []struct {
		what    string
		change  func(*policy.Frontend) // nil: it is removed
		leaving bool
		late    []string
		now     []string
	}{
		{"removed", nil, true, all, nil},
		{"removed, and nothing is balanced", nil, false, nil, all},
		{"open", func(f *policy.Frontend) { f.Restricted, f.SourceRanges = false, nil }, true, []string{all[0], all[2]}, nil},
		{"open, and endpoints stay", func(f *policy.Frontend) { f.Restricted, f.SourceRanges = false, nil }, false, nil, []string{all[0], all[2]}},
		{"for fewer", func(f *policy.Frontend) { f.SourceRanges = f.SourceRanges[:1] }, true, nil, []string{all[2]}},
		{"for others", func(f *policy.Frontend) { f.SourceRanges = meetingRanges(policy.IPv4)[1] }, true, nil, []string{all[2]}},
		{"not masqueraded", func(f *policy.Frontend) {
			f.Outside.Masquerade, f.FromLocal.Masquerade = policy.NoOne, policy.NoOne
		}, true, []string{all[1]}, nil},
	} {
		t.Run(tt.what, func(t *testing.T) {
			late, now, held := changeGuarded(t, tt.change, tt.leaving)
			for _, got := range []struct {
				what  string
				names []string
				want  []string
			}{{"late", late, tt.late}, {"at once", now, tt.now}, {"late of what the kernel holds", held, tt.late}} {
				got.names = slices.DeleteFunc(got.names, func(set string) bool { return !slices.Contains(all, set) })
				if !slices.Equal(got.names, got.want) {
					t.Errorf("%s: %v, want %v", got.what, got.names, got.want)
				}
			}
		})
	}
}

// changeGuarded changes a guarded service, nil removes it, and returns which sets lose members late and now, and
// late if the kernel holds what was before.
func changeGuarded(t *testing.T, change func(*policy.Frontend), leaves bool) (late, now, held []string) {
	w, before, after := backendtest.NewWorld(policy.IPv4), guardedService(), guardedService()
	leaving := map[ipset.Entry]bool{entryOf(before.Frontends[0]): leaves}
	w.Put(before.Key, before)
	r, fresh := NewIPVSRules(policy.IPv4), NewIPVSRules(policy.IPv4)
	fatal.If(t, r.Reset(w.State))
	actual := heldBy(r, w.State)
	if change == nil {
		after = nil
	} else {
		change(after.Frontends[0])
	}
	ch := r.Update(w.State, w.Put(before.Key, after))
	fatal.If(t, fresh.Reset(w.State))
	guards, names := r.TakeGuards(ch, leaving), func(ch *Changes) []string { return slices.Sorted(maps.Keys(ch.Lost)) }
	return names(guards), names(ch), names(fresh.Guards(actual, leaving))
}

// guardedService returns one that is for some, and masquerades everybody.
func guardedService() *policy.Resolved {
	res := backendtest.Web(policy.IPv4, 0, 1)
	f := res.Frontends[0]
	f.Restricted, f.SourceRanges = true, meetingRanges(policy.IPv4)[0]
	return res
}

// heldBy returns the sets of a kernel that holds what rules say.
func heldBy(r *Rules, st *policy.State) *Actual {
	h := &Actual{Sets: map[string]*ipset.Listing{}}
	for name, set := range r.Sets(st) {
		h.Sets[name] = &ipset.Listing{Set: ipset.Set{Name: name, Type: set.Type}, Entries: slices.Collect(maps.Keys(set.Entries))}
	}
	return h
}
