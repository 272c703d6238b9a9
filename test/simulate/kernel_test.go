package simulate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"time"

	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// A kernel holds a State of one family. It outlives restarts of the program.
type kernel struct {
	fam    policy.Family
	events chan proxier.ForeignChange
	pieces bool // services come in pieces: between two, an address whose ports all change may have none

	mu       sync.Mutex
	holds    *policy.State // replaced by each change, never changed; nil: nothing was ever written
	written  *policy.State // the same without what others did
	versions []version     // of holds, those not judged yet
	faults   []fault       // of the next Syncs
	trouble  span          // Syncs fail, take long, or nobody syncs
	half     bool          // the last Sync failed half way
	damaged  bool
	due      time.Time   // when the damage must be repaired; zero: by the next rest
	damages  []time.Time // the last ones
	announce map[netip.Addr]bool
	wrong    string // the first violation of a contract
}

// A version is what the kernel held from a moment on.
type version struct {
	*policy.State
	from, since time.Time // what was in force after since may explain it
}

// A span is a time, which lasts if it has no end.
type span struct{ from, to time.Time }

// A fault is what becomes of one Sync.
type fault struct {
	takes time.Duration // longer than SyncTimeout: it hangs until it is given up
	fails bool
	half  bool // of what it does, where it fails
}

// slack is how long the program may take to react.
const slack = time.Second

// trouble begins, or goes on if it ended a moment ago. The caller holds k.mu.
func (k *kernel) disturb(from time.Time) {
	if k.trouble.from.IsZero() || !k.trouble.to.IsZero() && from.Sub(k.trouble.to) > slack {
		k.trouble.from = from
	}
	k.trouble.to = time.Time{}
}

// calm reports whether Syncs have been good for a while.
func (k *kernel) calm(now time.Time) bool {
	return k.trouble.from.IsZero() || !k.trouble.to.IsZero() && now.Sub(k.trouble.to) > slack
}

// version returns what the kernel holds.
func (k *kernel) version(now time.Time) version {
	v := version{State: k.holds, from: now, since: now.Add(-slack)}
	if !k.calm(now) {
		v.since = k.trouble.from.Add(-slack)
	}
	return v
}

// put replaces what the kernel holds.
func (k *kernel) put(holds *policy.State) {
	k.holds = holds
	k.damaged = k.damaged && !same(k.holds, k.written)
	if k.damaged {
		return
	}
	k.due = time.Time{}
	if !k.half {
		k.versions = append(k.versions, k.version(time.Now()))
	}
	if !k.pieces {
		k.serveAnnounced()
	}
}

// serveAnnounced complains of addresses that are announced and not balanced.
func (k *kernel) serveAnnounced() {
	for a := range k.announce {
		if !balances(k.holds, a) {
			k.complain("%s is announced, and a Sync made the kernel stop balancing it", a)
		}
	}
}

func (k *kernel) complain(format string, args ...any) {
	if k.wrong == "" {
		k.wrong = fmt.Sprintf(format, args...)
	}
}

// damage has another program remove a part of what the kernel holds, and returns what.
func (k *kernel) damage(pick func(n int) int) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.holds == nil {
		return "nothing"
	}
	st := clone(k.holds)
	keys := slices.SortedFunc(maps.Keys(st.Services), source.Key.Compare)
	what := "a table"
	switch n := pick(len(keys) + 2); {
	case n == 0:
		st.RefusedAddrs, what = map[netip.Addr]int{}, "the refused addresses"
	case n == 1:
		st.Services, st.RefusedAddrs, st.Hairpins = map[source.Key]*policy.Resolved{}, map[netip.Addr]int{}, map[policy.Hairpin]int{}
	default:
		was := st.Services[keys[n-2]]
		st.Services[was.Key], what = &policy.Resolved{Key: was.Key, Frontends: was.Frontends[:len(was.Frontends)/2]}, "frontends of "+was.Key.String()
	}
	k.holds, k.damaged = st, !same(st, k.written)
	k.damages = append(k.damages, time.Now())
	return what
}

// often reports whether damage comes so often that repairs wait, as proxier.Contention says.
func (k *kernel) often(now time.Time) bool {
	k.damages = slices.DeleteFunc(k.damages, func(t time.Time) bool { return now.Sub(t) > 2*time.Minute })
	return len(k.damages) >= 10
}

// A backend writes a kernel, as one run of the program has it.
type backend struct {
	*kernel
	synced bool // the last Sync was good
	broken bool // it has heard of damage
}

// Sync implements proxier.Backend.
func (b *backend) Sync(ctx context.Context, st *policy.State, delta *policy.Delta) error {
	f := b.begin()
	select {
	case <-ctx.Done():
		b.mu.Lock()
		defer b.mu.Unlock()
		b.synced = false
		return ctx.Err()
	case <-time.After(f.takes):
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if delta != nil && !b.synced {
		b.complain("a delta came after a Sync that failed")
	}
	wanted, holds := clone(st), clone(st)
	if delta != nil {
		wanted, holds = clone(b.written), clone(b.holds)
		for _, ch := range delta.Services {
			if was := wanted.Services[cmp.Or(ch.New, ch.Old).Key]; !ch.Part && !sameFrontends(was, ch.Old) {
				b.complain("%s is not what a delta says that it was", cmp.Or(ch.New, ch.Old).Key)
			}
		}
		apply(wanted, delta)
		apply(holds, delta)
	}
	if b.broken {
		holds = clone(wanted)
	}
	b.synced = !f.fails
	if f.fails {
		if f.half && b.holds != nil {
			b.writeHalf(wanted)
		}
		return errors.New("the kernel says no")
	}
	b.broken, b.half, b.written = false, false, wanted
	if b.put(holds); f == (fault{}) && b.trouble.to.IsZero() {
		b.trouble.to = time.Now()
	}
	return nil
}

// begin returns the fault of a Sync that begins.
func (b *backend) begin() (f fault) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.faults) > 0 {
		f, b.faults = b.faults[0], b.faults[1:]
		b.disturb(time.Now())
	}
	return f
}

// writeHalf writes some services.
func (b *backend) writeHalf(wanted *policy.State) {
	half := clone(b.written)
	for i, key := range slices.SortedFunc(maps.Keys(wanted.Services), source.Key.Compare) {
		if i%2 == 0 {
			half.Services[key] = wanted.Services[key]
		}
	}
	b.half, b.written = true, half
	b.put(clone(half))
}

// Look implements proxier.Backend.
func (b *backend) Look(context.Context) (bool, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.broken = b.broken || b.synced && !same(b.holds, b.written)
	return b.broken, nil
}

// Watch implements proxier.Watcher.
func (b *backend) Watch(ctx context.Context, changed func(proxier.ForeignChange)) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case e := <-b.events:
			b.mu.Lock()
			b.broken = b.broken || !e.Lost
			b.mu.Unlock()
			changed(e)
		}
	}
}

// Plan implements proxier.Backend.
func (b *backend) Plan(context.Context, *policy.State) ([]proxier.Change, error) { return nil, nil }

// Cleanup implements proxier.Backend.
func (b *backend) Cleanup(context.Context) error { return nil }

func clone(st *policy.State) *policy.State {
	out := *st
	out.Services, out.RefusedAddrs = maps.Clone(st.Services), maps.Clone(st.RefusedAddrs)
	out.Hairpins, out.BoundAddrs = maps.Clone(st.Hairpins), nil
	return &out
}

// same reports whether two States have the same frontends and refusals.
func same(a, b *policy.State) bool {
	return sameKeys(a.RefusedAddrs, b.RefusedAddrs) && sameKeys(a.Hairpins, b.Hairpins) &&
		maps.EqualFunc(a.Services, b.Services, sameFrontends)
}

func sameFrontends(a, b *policy.Resolved) bool {
	x, y := a.AllFrontends(), b.AllFrontends()
	return len(x)+len(y) == 0 || reflect.DeepEqual(x, y)
}

func sameKeys[K comparable](a, b map[K]int) bool {
	return maps.EqualFunc(a, b, func(int, int) bool { return true })
}

func apply(st *policy.State, d *policy.Delta) {
	for _, ch := range d.Services {
		key := cmp.Or(ch.New, ch.Old).Key
		switch {
		case ch.Part:
			st.Services[key] = replaced(st.Services[key], ch)
		case ch.New == nil:
			delete(st.Services, key)
		default:
			st.Services[key] = ch.New
		}
	}
	applySet(st.RefusedAddrs, d.RefusedAddrs)
	applySet(st.Hairpins, d.Hairpins)
}

// replaced returns a service of which a part is replaced.
func replaced(was *policy.Resolved, ch policy.ServiceChange) *policy.Resolved {
	list := slices.Clone(ch.New.Frontends)
	for _, f := range was.AllFrontends() {
		isOld := func(o *policy.Frontend) bool { return o.Key == f.Key }
		if !slices.ContainsFunc(ch.Old.Frontends, isOld) && !slices.ContainsFunc(ch.New.Frontends, isOld) {
			list = append(list, f)
		}
	}
	slices.SortFunc(list, func(a, b *policy.Frontend) int { return a.Key.Compare(b.Key) })
	return &policy.Resolved{Key: ch.New.Key, Frontends: list}
}

func applySet[K comparable](set map[K]int, d policy.SetDelta[K]) {
	for _, v := range d.Gained {
		set[v] = 1
	}
	for _, v := range d.Lost {
		delete(set, v)
	}
}

// balances reports whether packets to an address are balanced at one of its ports.
func balances(st *policy.State, a netip.Addr) bool {
	for _, r := range st.Services {
		for _, f := range r.Frontends {
			if f.Key.Addr == a && f.Key.Kind != policy.NodePort && f.Outside.Action == policy.Balance {
				return true
			}
		}
	}
	return false
}
