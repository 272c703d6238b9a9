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

// A disturbance is a kind of event that makes us compare and repair what a family has.
type disturbance struct {
	fam  policy.Family
	lost bool // it is not known whether what is ours was changed
}

// repairs hears of changes by other programs and has the loop repair them, or look: for each kind less often where that
// happens again and again.
type repairs struct {
	Config
	contention map[disturbance]*proxier.Contention
}

func newRepairs(c Config) *repairs {
	all := make(map[disturbance]*proxier.Contention)
	for _, fam := range []policy.Family{policy.IPv4, policy.IPv6} {
		all[disturbance{fam, false}] = proxier.NewContention(func() { c.Loop().Repair(fam) })
		all[disturbance{fam, true}] = proxier.NewContention(func() { c.Loop().Look(fam) })
	}
	return &repairs{c, all}
}

// StopRepairs ends what is still to be repaired.
func (r *repairs) StopRepairs() {
	for _, one := range r.contention {
		one.Stop()
	}
}

// disturbed has the loop repair, or look, after a foreign change, and logs whose it was.
func (r *repairs) disturbed(fam policy.Family, e proxier.ForeignChange) {
	r.Foreign(fam)
	who := "another program" // the kernel does not always say which
	if e.PID != 0 {
		who = fmt.Sprintf("process %d (%s)", e.PID, e.Process)
	}
	wait, news := r.contention[disturbance{fam, e.Lost}].Changed(who)
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
		if p := r.contention[disturbance{fam: fam}].Problem(); p != "" {
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
