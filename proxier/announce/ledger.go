package announce

import (
	"maps"
	"net/netip"
	"slices"
	"sync"

	"svcproxy.dev/svcproxy/internal/lists"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/report"
	"svcproxy.dev/svcproxy/source"
)

// An Announcer tells the network of addresses that this host serves. Its methods must not block.
type Announcer interface {
	report.Announcer

	// Announce takes changes over. It is called for one change of a family after the other, with
	// what is to be announced only after the kernel serves it, and with what is not before the
	// kernel is told to stop. It is never called for the end of the Loop.
	Announce(fam policy.Family, changes []Change)
}

// An Change says how an address is announced from now on.
type Change struct {
	Addr  netip.Addr
	Means source.Means // 0: not at all
	Loss               // of what it is not announced by any more
}

// A Loss says how an address came not to be announced any more.
type Loss struct {
	Wanted bool // because people asked for that, and nothing has failed
	Serves bool // and the kernel goes on serving it
}

// A Ledger is what a family has announced, and tells the Announcer. An address is announced for as long as any service
// announces it. Any goroutine may call its methods.
type Ledger struct {
	fam     policy.Family
	network Announcer  // nil: nobody is told
	telling sync.Mutex // held while the Announcer is told, so that it hears changes in their order

	mu       sync.Mutex                           // guards what follows
	of       map[source.Key][]policy.Announcement // of each service, those that are not withheld and that the kernel holds
	by       map[netip.Addr]*[meansCount]int      // how many services announce it
	told     map[netip.Addr]source.Means          // what the Announcer knows
	changed  map[netip.Addr]Loss                  // by of these may differ from told
	withheld bool                                 // all is, for this host is drained
	partial  *proxier.PartialError                // that of agrees with
}

const meansCount = 2

// New returns an empty Ledger of a family; network may be nil.
func New(fam policy.Family, network Announcer) *Ledger {
	return &Ledger{
		fam: fam, network: network,
		of: make(map[source.Key][]policy.Announcement), by: make(map[netip.Addr]*[meansCount]int),
		told: make(map[netip.Addr]source.Means), changed: make(map[netip.Addr]Loss),
	}
}

// Synced takes over what a Sync that succeeded has put into the kernel: services, of which some changed, except for
// what they lack.
func (a *Ledger) Synced(services map[source.Key]*policy.Resolved, changed map[source.Key]policy.ServiceChange, lacks *proxier.PartialError) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for key := range changed {
		a.set(key, heldBy(services[key], lacks), Loss{})
	}
	if lacks != a.partial && (lacks == nil || a.partial == nil || !maps.Equal(lacks.Frontends, a.partial.Frontends)) {
		for key, r := range services {
			a.set(key, heldBy(r, lacks), Loss{})
		}
	}
	a.partial = lacks
}

// Withdraw takes everything back, and tells.
func (a *Ledger) Withdraw() {
	a.mu.Lock()
	for key := range a.of {
		a.set(key, nil, Loss{Wanted: true})
	}
	a.mu.Unlock()
	a.Flush()
}

// set notes what is announced for a service from now on.
func (a *Ledger) set(key source.Key, now []policy.Announcement, how Loss) {
	was := a.of[key]
	if slices.Equal(was, now) {
		return
	}
	if a.of[key] = now; len(now) == 0 {
		delete(a.of, key)
	}
	for _, n := range now { // first, so that what stays is not lost in between
		a.count(n, 1, how)
	}
	for _, w := range was {
		a.count(w, -1, how)
	}
}

func (a *Ledger) count(n policy.Announcement, by int, how Loss) {
	if a.by[n.Addr] == nil {
		a.by[n.Addr] = new([meansCount]int)
	}
	a.by[n.Addr][slices.Index(source.EachMeans, n.Means)] += by
	a.changed[n.Addr] = how
}

// Announced returns what is announced of each service.
func (a *Ledger) Announced() map[source.Key][]policy.Announcement {
	a.mu.Lock()
	defer a.mu.Unlock()
	return maps.Clone(a.of)
}

// means returns by what an address is announced.
func (a *Ledger) means(addr netip.Addr) (m source.Means) {
	n := a.by[addr]
	if n == nil || a.withheld {
		return 0
	}
	for i, means := range source.EachMeans {
		if n[i] > 0 {
			m |= means
		}
	}
	return m
}

// Flush hands the Announcer what changed since it was last called.
func (a *Ledger) Flush() {
	a.telling.Lock()
	defer a.telling.Unlock()
	if list := a.news(); len(list) > 0 && a.network != nil {
		a.network.Announce(a.fam, list)
	}
}

// news returns what the Announcer does not know yet, in order, as if it were told now.
func (a *Ledger) news() (list []Change) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for addr, how := range a.changed {
		now := a.means(addr)
		if now != a.told[addr] {
			list = append(list, Change{addr, now, how})
		}
		if a.told[addr] = now; now == 0 {
			delete(a.told, addr)
		}
		if n := a.by[addr]; n != nil && *n == [meansCount]int{} {
			delete(a.by, addr)
		}
	}
	clear(a.changed)
	slices.SortFunc(list, func(x, y Change) int { return x.Addr.Compare(y.Addr) })
	return list
}

// Withhold has nothing announced while this host is drained.
func (a *Ledger) Withhold(drained bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if drained == a.withheld {
		return
	}
	a.withheld = drained
	for addr := range a.by {
		a.changed[addr] = Loss{Wanted: drained, Serves: drained}
	}
}

// Shrink takes back what a service is not to announce any more, as r has it; nil: the service is gone.
func (a *Ledger) Shrink(key source.Key, r *policy.Resolved) {
	a.mu.Lock()
	defer a.mu.Unlock()
	was := a.of[key]
	if len(was) == 0 {
		return
	}
	still := lists.Keep(was, func(x policy.Announcement) bool {
		now := r.Announcement(x)
		if now == nil || now.Withheld != policy.NotWithheld {
			a.count(x, -1, Loss{
				Wanted: now == nil || now.Withheld.Wanted(),
				Serves: (now == nil || now.Withheld == policy.LeavingHere) && r.Balances(x.Addr),
			})
			return false
		}
		return true
	})
	if a.of[key] = still; len(still) == 0 {
		delete(a.of, key)
	}
}

// heldBy returns what a service announces when the kernel holds it except for what it lacks.
func heldBy(r *policy.Resolved, lacks *proxier.PartialError) []policy.Announcement {
	if r == nil {
		return nil
	}
	return lists.Keep(r.Announced, func(n policy.Announcement) bool {
		return n.Withheld == policy.NotWithheld && !report.Lacks(r, n.Addr, lacks)
	})
}
