package modeswitch

import (
	"context"
	"fmt"
	"sync"

	"svcproxy.dev/svcproxy/cmd/internal/modes"
	"svcproxy.dev/svcproxy/cmd/internal/node"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// repairs hears of changes by other programs and has the loop repair them, or look where it is not known whether
// what is ours was changed: for each less often where that happens again and again.
type repairs struct {
	Config
	repair, look map[policy.Family]*proxier.Contention
}

func newRepairs(c Config) *repairs {
	r := &repairs{c, make(map[policy.Family]*proxier.Contention), make(map[policy.Family]*proxier.Contention)}
	for _, fam := range []policy.Family{policy.IPv4, policy.IPv6} {
		r.repair[fam] = proxier.NewContention(func() { c.Loop().Repair(fam) })
		r.look[fam] = proxier.NewContention(func() { c.Loop().Look(fam) })
	}
	return r
}

// StopRepairs ends what is still to be repaired.
func (r *repairs) StopRepairs() {
	for fam, one := range r.repair {
		one.Stop()
		r.look[fam].Stop()
	}
}

// disturbed has the loop repair, or look, after a foreign change, and logs whose it was.
func (r *repairs) disturbed(fam policy.Family, e proxier.ForeignChange) {
	r.Foreign(fam)
	who := "another program" // the kernel does not always say which
	if e.PID != 0 {
		who = fmt.Sprintf("process %d (%s)", e.PID, e.Process)
	}
	contention := r.repair[fam]
	if e.Lost {
		contention = r.look[fam]
	}
	wait, news := contention.Changed(who)
	switch {
	case !news:
	case e.Lost && wait > 0:
		r.Log.Warn("kernel events are lost repeatedly; comparing everything less often", "family", fam, "wait", wait)
	case e.Lost:
		r.Log.Warn("kernel events were lost; comparing everything", "family", fam)
	case wait > 0:
		r.Log.Warn("another program keeps changing our table; delaying repairs with backoff",
			"family", fam, "who", who, "wait", wait)
	case e.PID == 0:
		r.Log.Warn("another program changed our rules; repairing them", "family", fam)
	default:
		r.Log.Warn("another program changed our table; repairing it", "family", fam, "process", e.Process, "pid", e.PID)
	}
}

// Contended says who changes what is ours again and again.
func (r *repairs) Contended() (list []string) {
	for _, fam := range node.Families(r.Fixed) {
		if p := r.repair[fam].Problem(); p != "" {
			list = append(list, fam.String()+": "+p)
		}
	}
	return list
}

// watch repairs at once what others change, where the kernel tells of it.
func (r *repairs) watch(ctx context.Context, am *Active) {
	for fam, b := range am.Backends {
		r.watchBackend(ctx, am, fam, b)
	}
}

func (r *repairs) watchBackend(ctx context.Context, am *Active, fam policy.Family, b modes.Backend) {
	w, tells := b.(proxier.Watcher)
	if !tells {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	var watching sync.WaitGroup
	watching.Go(func() {
		err := w.Watch(ctx, func(e proxier.ForeignChange) { r.disturbed(fam, e) })
		if ctx.Err() == nil {
			r.Log.Warn("kernel notifications unavailable; foreign changes are repaired at the next resync", "family", fam, "err", err)
		}
	})
	am.watched[fam] = func() { cancel(); watching.Wait() }
}
