package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	"svcproxy.dev/svcproxy/cmd/internal/modes"
	"svcproxy.dev/svcproxy/cmd/internal/node"
	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/healthz"
	"svcproxy.dev/svcproxy/proxier/loop"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// foreignChanges has the Loop repair what other processes change of ours, less often where
// they do it again and again.
type foreignChanges struct {
	log     *slog.Logger
	metrics *healthz.Metrics
	fixed   configs.Settings // as they were at start

	contention map[disturbance]*proxier.Contention
}

// A disturbance is a kind of event that makes us compare and repair what a family has.
type disturbance struct {
	fam  policy.Family
	lost bool // it is not known whether what is ours was changed
}

// disturbances returns, for each kind, what has the loop repair or look, less often where that
// happens again and again.
func disturbances(l *loop.Loop) map[disturbance]*proxier.Contention {
	all := make(map[disturbance]*proxier.Contention)
	for _, fam := range []policy.Family{policy.IPv4, policy.IPv6} {
		all[disturbance{fam, false}] = proxier.NewContention(func() { l.Repair(fam) })
		all[disturbance{fam, true}] = proxier.NewContention(func() { l.Look(fam) })
	}
	return all
}

// stop ends what is still to be repaired.
func (c *foreignChanges) stop() {
	for _, one := range c.contention {
		one.Stop()
	}
}

// changed has the loop repair, or look, after a foreign change, and logs whose it was.
func (c *foreignChanges) changed(fam policy.Family, e proxier.ForeignChange) {
	c.metrics.Disturbed(fam)
	who := "another program" // the kernel does not always say which
	if e.PID != 0 {
		who = fmt.Sprintf("process %d (%s)", e.PID, e.Process)
	}
	wait, news := c.contention[disturbance{fam, e.Lost}].Changed(who)
	switch {
	case !news:
	case e.Lost && wait > 0:
		c.log.Warn("events of the kernel are lost again and again: comparing everything less often from now on", "family", fam, "wait", wait)
	case e.Lost:
		c.log.Warn("events of the kernel were lost: comparing everything", "family", fam)
	case wait > 0:
		c.log.Warn("another program changes our table again and again: repairs wait from now on, longer each time",
			"family", fam, "who", who, "wait", wait)
	case e.PID == 0:
		c.log.Warn("rules were changed by another program: repairing them", "family", fam)
	default:
		// These words stay: searches of logs rely on them.
		c.log.Warn("somebody else changed our table: mending it", "family", fam, "process", e.Process, "pid", e.PID)
	}
}

// problems says who changes what is ours again and again.
func (c *foreignChanges) problems() (list []string) {
	for _, fam := range node.Families(c.fixed) {
		if p := c.contention[disturbance{fam: fam}].Problem(); p != "" {
			list = append(list, fam.String()+": "+p)
		}
	}
	return list
}

// watch repairs at once what others change, where the kernel tells of it.
func (sw *modeSwitch) watch(ctx context.Context, am *activeMode) {
	for fam, b := range am.backends {
		sw.watchBackend(ctx, am, fam, b)
	}
}

func (sw *modeSwitch) watchBackend(ctx context.Context, am *activeMode, fam policy.Family, b modes.Backend) {
	w, tells := b.(proxier.Watcher)
	if !tells {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	var watching sync.WaitGroup
	watching.Go(func() { sw.watchFamily(ctx, fam, w) })
	am.watched[fam] = func() { cancel(); watching.Wait() }
}

func (sw *modeSwitch) watchFamily(ctx context.Context, fam policy.Family, w proxier.Watcher) {
	err := w.Watch(ctx, func(e proxier.ForeignChange) { sw.foreign.changed(fam, e) })
	if ctx.Err() == nil {
		sw.log.Warn("changes by others are noticed at the next resync only", "family", fam, "err", err)
	}
}
