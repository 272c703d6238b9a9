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

// disturbances returns, for each kind, what has the loop repair or look, less often where that
// happens again and again.
func (sw *Switch) disturbances() map[disturbance]*proxier.Contention {
	all := make(map[disturbance]*proxier.Contention)
	for _, fam := range []policy.Family{policy.IPv4, policy.IPv6} {
		all[disturbance{fam, false}] = proxier.NewContention(func() { sw.Loop().Repair(fam) })
		all[disturbance{fam, true}] = proxier.NewContention(func() { sw.Loop().Look(fam) })
	}
	return all
}

// StopRepairs ends what is still to be repaired.
func (sw *Switch) StopRepairs() {
	for _, one := range sw.contention {
		one.Stop()
	}
}

// disturbed has the loop repair, or look, after a foreign change, and logs whose it was.
func (sw *Switch) disturbed(fam policy.Family, e proxier.ForeignChange) {
	sw.Foreign(fam)
	who := "another program" // the kernel does not always say which
	if e.PID != 0 {
		who = fmt.Sprintf("process %d (%s)", e.PID, e.Process)
	}
	wait, news := sw.contention[disturbance{fam, e.Lost}].Changed(who)
	switch {
	case !news:
	case e.Lost && wait > 0:
		sw.Log.Warn("events of the kernel are lost again and again: comparing everything less often from now on", "family", fam, "wait", wait)
	case e.Lost:
		sw.Log.Warn("events of the kernel were lost: comparing everything", "family", fam)
	case wait > 0:
		sw.Log.Warn("another program changes our table again and again: repairs wait from now on, longer each time",
			"family", fam, "who", who, "wait", wait)
	case e.PID == 0:
		sw.Log.Warn("rules were changed by another program: repairing them", "family", fam)
	default:
		// These words stay: searches of logs rely on them.
		sw.Log.Warn("somebody else changed our table: mending it", "family", fam, "process", e.Process, "pid", e.PID)
	}
}

// Contended says who changes what is ours again and again.
func (sw *Switch) Contended() (list []string) {
	for _, fam := range node.Families(sw.Fixed) {
		if p := sw.contention[disturbance{fam: fam}].Problem(); p != "" {
			list = append(list, fam.String()+": "+p)
		}
	}
	return list
}

// watch repairs at once what others change, where the kernel tells of it.
func (sw *Switch) watch(ctx context.Context, am *Active) {
	for fam, b := range am.Backends {
		sw.watchBackend(ctx, am, fam, b)
	}
}

func (sw *Switch) watchBackend(ctx context.Context, am *Active, fam policy.Family, b modes.Backend) {
	w, tells := b.(proxier.Watcher)
	if !tells {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	var watching sync.WaitGroup
	watching.Go(func() { sw.watchFamily(ctx, fam, w) })
	am.watched[fam] = func() { cancel(); watching.Wait() }
}

func (sw *Switch) watchFamily(ctx context.Context, fam policy.Family, w proxier.Watcher) {
	err := w.Watch(ctx, func(e proxier.ForeignChange) { sw.disturbed(fam, e) })
	if ctx.Err() == nil {
		sw.Log.Warn("changes by others are noticed at the next resync only", "family", fam, "err", err)
	}
}
