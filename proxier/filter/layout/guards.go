package layout

import (
	"slices"
	"strings"

	"svcproxy.dev/svcproxy/netutil/ipset"
	"svcproxy.dev/svcproxy/netutil/xtables"
)

// Actual is what the kernel holds of ours.
type Actual struct {
	Tables map[string]*xtables.Table
	Sets   map[string]*ipset.Listing
}

// Balances reports whether rules of iptables mode balance.
func (h *Actual) Balances() bool {
	for name := range h.Sets {
		if strings.HasPrefix(name, vipsSet+"-") {
			return true
		}
	}
	return false
}

// leadsTo reports whether packets in a built-in chain of any table pass a chain of ours whose name ends so.
func (h *Actual) leadsTo(hook, chain string) bool {
	for _, tab := range h.Tables {
		if slices.ContainsFunc(tab.Jumps[hook], func(rule string) bool { return strings.HasSuffix(rule, chain) }) {
			return true
		}
	}
	return false
}

// TakeServed removes from ch, and returns, the changes that must wait until IPVS holds
// the servers: which frontends it serves.
func (r *Rules) TakeServed(ch *Changes) *Changes {
	name := r.words.Set(servedSet)
	served := &Changes{Gained: map[string][]ipset.Entry{name: ch.Gained[name]}, Lost: map[string][]ipset.Entry{}}
	delete(ch.Gained, name)
	ch.Lost[name] = slices.DeleteFunc(ch.Lost[name], func(e ipset.Entry) bool { return r.withheld[e] }) // never there
	return served
}

// Withhold sets, after Reset, or after Update with what TakeServed returned, which of
// all frontends have no server. They do not count as served: packets to addresses on
// our device are refused then, or daemons of the host would answer. It adds to changes
// those that gained or lost their server.
func (r *Rules) Withhold(entries map[ipset.Entry]bool, changes *Changes) {
	was := r.withheld
	r.withheld = entries
	if changes == nil {
		return
	}
	name := r.words.Set(servedSet)
	served := func(e ipset.Entry) bool { return r.members[member{servedSet, e}] > 0 }
	for e := range was {
		if !entries[e] && served(e) && !slices.Contains(changes.Gained[name], e) {
			changes.Gained[name] = append(changes.Gained[name], e)
		}
	}
	for e := range entries {
		if !was[e] && served(e) && !slices.Contains(changes.Gained[name], e) {
			changes.Lost[name] = append(changes.Lost[name], e)
		}
	}
	changes.Gained[name] = slices.DeleteFunc(changes.Gained[name], func(e ipset.Entry) bool { return entries[e] })
}

// Unguarded returns the frontends that the rules in the kernel, h, do not guard whole: some packets pass that the
// frontend drops, or are left alone that it masquerades. Rules of iptables mode, which come before IPVS, masquerade all.
func (r *Rules) Unguarded(h *Actual) map[ipset.Entry]bool {
	asked := map[string]bool{FirewalledSet: h.leadsTo("INPUT", "")} // the sets that matter: does a packet meet them?
	if !h.Balances() {
		meets := h.leadsTo("PREROUTING", masqueradeChain) && h.leadsTo("OUTPUT", masqueradeChain)
		asked[everyoneSet], asked[nonLocalSet], asked[processesSet] = meets, meets, meets
	}
	held := map[member]bool{}
	for name, asked := range asked {
		if set := h.Sets[r.words.Set(name)]; set != nil && asked {
			for _, e := range set.Entries {
				held[member{name, e}] = true
			}
		}
	}
	out := map[ipset.Entry]bool{}
	for m, n := range r.members {
		if _, matters := asked[m.set]; matters && n > 0 && !held[m] {
			out[m.Entry] = true
		}
	}
	return out
}

// guardSets say who may use frontends, and whom to masquerade there.
var guardSets = []string{FirewalledSet, rangesSet, everyoneSet, nonLocalSet, processesSet}

// TakeGuards removes from ch, and returns, what these sets must not lose before IPVS has stopped balancing to
// endpoints that leave: leaving has their frontends. One that stays restricted loses ranges at once.
func (r *Rules) TakeGuards(ch *Changes, leaving map[ipset.Entry]bool) *Changes {
	opened := map[ipset.Entry]bool{}
	for _, e := range ch.Lost[r.words.Set(FirewalledSet)] {
		opened[e] = leaving[e]
	}
	late := &Changes{Lost: map[string][]ipset.Entry{}}
	for _, set := range guardSets {
		waits := leaving
		if set == rangesSet {
			waits = opened
		}
		moveLost(r.words.Set(set), ch, late, waits)
	}
	return late
}

// moveLost moves what a set loses of some frontends to other changes.
func moveLost(set string, from, to *Changes, of map[ipset.Entry]bool) {
	var stay []ipset.Entry
	for _, e := range from.Lost[set] {
		if of[ipset.Entry{Addr: e.Addr, Protocol: e.Protocol, Port: e.Port}] {
			to.Lost[set] = append(to.Lost[set], e)
		} else {
			stay = append(stay, e)
		}
	}
	if from.Lost[set] = stay; stay == nil {
		delete(from.Lost, set)
	}
}

// Guards returns the same after Reset, if the kernel holds h. Until the next Update, Sets still has what is lost later.
func (r *Rules) Guards(h *Actual, leaving map[ipset.Entry]bool) *Changes {
	ch := &Changes{Lost: map[string][]ipset.Entry{}}
	for _, s := range r.sets() {
		name := r.words.Set(s.name)
		l := h.Sets[name]
		if !slices.Contains(guardSets, s.name) || l == nil || l.Type != s.Type {
			continue
		}
		for _, e := range l.Entries {
			if _, stays := r.members[member{s.name, e}]; !stays {
				ch.Lost[name] = append(ch.Lost[name], e)
			}
		}
	}
	late := r.TakeGuards(ch, leaving)
	r.late = late.Lost
	return late
}
