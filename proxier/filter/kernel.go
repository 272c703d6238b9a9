// Package filter keeps the kernel's iptables chains and ip sets in step with a State.
// iptables mode and ipvs mode share it.
//
//	State ──► layout.Rules (pure: text of chains, members of sets) ──► Kernel (compares and writes)
//
//	kernel.go, cleanup.go  opening, what the host lacks, and leaving
//	sync.go, repair.go     the syncs: of everything, of a change, and of what looks found
//	look.go                looks beside the syncs, and what they watch for
//	mirror.go              what the kernel holds after the last sync
//	compare.go, order.go   actual against desired; our jumps before foreign rules
//	sets.go, tables.go     ip sets; tables, also beside other programs that write
//	family.go              what all share: one family on this host, and its connections that must survive changes
//	objects.go             what the kernel has, and lacks, of one frontend, for explain
package filter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"

	"svcproxy.dev/svcproxy/netutil/ipset"
	"svcproxy.dev/svcproxy/netutil/nft"
	"svcproxy.dev/svcproxy/netutil/xtables"
	"svcproxy.dev/svcproxy/proxier/filter/layout"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// A Kernel manages the chains and sets of one family in the network namespace that it
// is used in. One goroutine at a time may call its methods, except for Look, Damaged,
// Reported and Watch, which run beside the others, in any.
//
// Sets get members before the rules that need them are written, and lose them
// after: a packet never meets a rule whose set is not ready. All changed chains
// of a table are written at once.
type Kernel struct {
	*family
	lookout
	sets  ipsets
	stale []*xtables.Tool // other variants with chains of ours

	warnedUnmarked bool // that connections cannot be marked
	marked         bool // those of before have been, if FORWARD is to accept them
}

// Open finds out which variant of iptables the host uses, and checks that the
// kernel has ip sets.
func Open(ctx context.Context, fam policy.Family) (*Kernel, error) {
	choice, err := Choose(ctx, fam == policy.IPv6)
	if err != nil {
		return nil, err
	}
	return open(ctx, fam, choice)
}

func open(ctx context.Context, fam policy.Family, choice *xtables.Choice) (*Kernel, error) {
	conn, err := ipset.Dial()
	if err != nil {
		return nil, fmt.Errorf("ip sets: %w", err)
	}
	for _, s := range layout.SharedSets {
		if err := conn.Probe(ctx, s.Type, fam == policy.IPv6); err != nil {
			return nil, errors.Join(fmt.Errorf("ip sets of %s: %w", fam, err), conn.Close())
		}
	}
	k := newKernel(fam, choice.Use, conn)
	k.stale, k.keep.hooks = choice.Stale, nft.NewHolder(nfFamily(choice.Use.IPv6))
	if k.lookSets.Conn, err = ipset.Dial(); err != nil {
		return nil, errors.Join(fmt.Errorf("ip sets: %w", err), k.Close())
	}
	if k.tool.Variant == xtables.NFT {
		if k.events, err = openEvents(k.tool.IPv6); err != nil {
			return nil, errors.Join(err, k.Close())
		}
	}
	return k, nil
}

// newKernel returns a Kernel that can be cleaned up and closed.
func newKernel(fam policy.Family, tool *xtables.Tool, conn *ipset.Conn) *Kernel {
	f := &family{words: layout.Dialects[fam], tool: tool, log: slog.New(slog.DiscardHandler)}
	return &Kernel{
		family: f, sets: ipsets{f, conn, map[string]bool{}},
		lookout: lookout{family: f, lookSets: ipsets{f, &ipset.Conn{}, nil}, keep: keeper{family: f}, looking: make(chan struct{}, 1)},
	}
}

// Close closes the sockets and leaves the kernel as it is.
func (k *Kernel) Close() error {
	errs := []error{k.sets.Close(), k.keep.hooks.Release(), k.lookSets.Close()}
	if k.events != nil {
		errs = append(errs, k.events.close())
	}
	return errors.Join(errs...)
}

// SetMessages returns how many messages were sent to the kernel's ip sets.
func (k *Kernel) SetMessages() int { return k.sets.Messages }

// ReadFor sets r to the rules of st on this host, and returns what the kernel holds.
func (k *Kernel) ReadFor(ctx context.Context, r *layout.Rules, st *policy.State) (*layout.Actual, error) {
	if err := r.Reset(st); err != nil {
		return nil, err
	}
	h, err := k.Read(ctx, r)
	if err != nil {
		return nil, err
	}
	r.Observe(h)
	return h, nil
}

// Read reads what the kernel holds of ours, and the tables that r needs. As long as that is unknown, as at a start, the
// other family of this process does not write meanwhile: each of its commits would make the reading begin again.
func (k *Kernel) Read(ctx context.Context, r *layout.Rules) (*layout.Actual, error) {
	if !k.CanApply() {
		unlock, err := k.tool.LockOutWriters(ctx)
		if err != nil {
			return nil, err
		}
		defer unlock()
	}
	tables, once, err := readAtOnce(ctx, k.tool)
	if err != nil {
		return nil, err
	}
	if !once {
		k.forceRead() // what a sync is misled to is found by the next look
	}
	h := &layout.Actual{Tables: map[string]*xtables.Table{}}
	for name, tab := range tables {
		k.order.observe(name, tab)
		if len(tab.Chains)+len(tab.Jumps) > 0 { // another mode may have left them
			h.Tables[name] = tab
		}
	}
	for _, name := range r.Tables() {
		if h.Tables[name] = tables[name]; h.Tables[name] == nil {
			if h.Tables[name], err = k.tool.Read(ctx, name, layout.Prefix); err != nil {
				return nil, err
			}
		}
	}
	h.Sets, err = k.sets.all(ctx)
	return h, err
}

// Probe finds out which features that r may need this host lacks. It returns the
// missing optional ones; any other is an error.
func (k *Kernel) Probe(ctx context.Context, r *layout.Rules) (xtables.Missing, error) {
	randomFully, version, err := k.tool.HasRandomFully()
	if err != nil {
		return nil, err
	}
	if !randomFully {
		return nil, fmt.Errorf("%s %s does not support MASQUERADE --random-fully: it needs 1.6.2 or later", k.tool, version)
	}
	set := ipset.Set{Name: fmt.Sprintf("%s-%d%s", layout.ProbePrefix, os.Getpid(), k.words.Suffix), Type: ipset.HashIP, IPv6: k.tool.IPv6, MaxElem: 1}
	if err := k.sets.Create(ctx, set); err != nil && !errors.Is(err, ipset.ErrExist) {
		return nil, err
	}
	features := slices.DeleteFunc(r.Features(set.Name), func(f xtables.Feature) bool { return k.tool.HasTarget(f.Table, f.Name) })
	missing, err := k.tool.Probe(ctx, layout.ProbePrefix, features, features)
	if err = errors.Join(err, k.sets.destroyWithin(ctx, set.Name, busyFor)); err != nil {
		return nil, err
	}
	for name, why := range missing {
		if !slices.Contains(layout.Optional, name) {
			return nil, fmt.Errorf("this host lacks %s, which %s needs: %s", name, k.tool, why)
		}
	}
	return missing, nil
}
