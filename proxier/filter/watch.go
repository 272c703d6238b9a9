package filter

import (
	"context"
	"errors"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/netutil/nft"
	"svcproxy.dev/svcproxy/netutil/xtables"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/filter/layout"
)

const (
	// The legacy variant has no events, so it is asked for our jumps, after this many
	// times as long as the last query took, or canaryInterval if that is less. A query
	// costs a process for each table, and one more.
	canaryShare    = 20
	canaryInterval = 5 * time.Second

	// sizeCheckInterval is how often the sizes of the tables are checked, whose change
	// is the reason for a query. That costs a system call for each.
	sizeCheckInterval = 250 * time.Millisecond
)

// minLookInterval is the least time between two looks that events cause: a process that
// writes rules all the time must not keep us reading all of them.
const minLookInterval = time.Second

// Watch calls changed with foreign changes to our rules, once a look has found something
// to repair, until ctx ends, whose error it returns. The nft variant gets events, the
// legacy variant polls the sizes of its tables. It runs beside the other methods.
func (k *Kernel) Watch(ctx context.Context, changed func(proxier.ForeignChange)) error {
	if k.events == nil {
		return k.runCanary(ctx, changed)
	}
	return k.listen(ctx, changed)
}

// events are the events of nf_tables about foreign changes.
type events struct {
	conn    *nft.Conn
	monitor *nft.Monitor

	watching atomic.Bool
	dirty    atomic.Bool // something may have changed since the tables were last read

	touched chan nft.Event // rules of a built-in chain were changed: foreign ones may be in front of ours
}

// nftTables returns the possible tables of the nft variant.
func nftTables(v6 bool) (tables []nft.Table) {
	for _, name := range []string{"nat", "filter", "mangle", "raw", "security"} {
		tables = append(tables, nft.Table{Family: family(v6), Name: name})
	}
	return tables
}

func family(v6 bool) byte {
	if v6 {
		return unix.NFPROTO_IPV6
	}
	return unix.NFPROTO_IPV4
}

func openEvents(v6 bool) (*events, error) {
	conn, err := nft.Dial()
	if err != nil {
		return nil, err
	}
	e := &events{conn: conn, touched: make(chan nft.Event, 1)}
	e.monitor, err = nft.NewNameMonitor(nft.Names{
		Tables: nftTables(v6), Ours: layout.Prefix, Own: xtables.Committed, Scratch: layout.ProbePrefix,
		Others: layout.BuiltIn(), Touched: func(t nft.Event) {
			select {
			case e.touched <- t:
			default: // it is to be looked at already
			}
		},
	})
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return e, nil
}

func (e *events) close() error { return errors.Join(e.monitor.Close(), e.conn.Close()) }

// mustRead reports whether the tables must be read. It is called before they are.
func (e *events) mustRead() bool { return e.dirty.Swap(false) || !e.watching.Load() }

// A disturbance is a foreign change, and how often the mirror was forgotten until then.
type disturbance struct {
	proxier.ForeignChange
	resets int
}

// listen looks at the kernel after events about foreign changes.
func (k *Kernel) listen(ctx context.Context, changed func(proxier.ForeignChange)) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	queue := make(chan disturbance, 1)
	var wg sync.WaitGroup
	wg.Go(func() {
		defer k.events.watching.Store(false)
		stop(k.events.monitor.Watch(ctx, func() { k.events.dirty.Store(true); k.events.watching.Store(true) }, func(e nft.Event) {
			k.events.dirty.Store(true)
			select {
			case queue <- disturbance{proxier.ForeignChange(e), k.mirror.now().resets}:
			default: // a look is already due
			}
		}))
	})
	k.lookAfterEvents(ctx, queue, changed)
	wg.Wait()
	return context.Cause(ctx)
}

// lookAfterEvents looks at the kernel after each event. It runs in the goroutine of
// Watch's caller, in whose network namespace programs run.
func (k *Kernel) lookAfterEvents(ctx context.Context, queue chan disturbance, changed func(proxier.ForeignChange)) {
	for {
		select {
		case <-ctx.Done():
			return
		case e := <-k.events.touched:
			if k.overtaken(ctx) {
				k.events.dirty.Store(true)
				k.lookUntilSeen(ctx, disturbance{proxier.ForeignChange(e), k.mirror.now().resets}, queue, changed)
			}
		case d := <-queue:
			k.lookUntilSeen(ctx, d, queue, changed)
		}
		select {
		case <-ctx.Done():
		case <-time.After(minLookInterval):
		}
	}
}

// lookUntilSeen looks at the kernel after an event, and queues the event again where the look has not seen all: a
// sync was comparing everything, or others wrote meanwhile.
func (k *Kernel) lookUntilSeen(ctx context.Context, d disturbance, queue chan<- disturbance, changed func(proxier.ForeignChange)) {
	err := k.lookAfter(ctx, d, changed)
	if err != nil || k.mirror.now().known && !k.events.dirty.Load() {
		return
	}
	select {
	case queue <- d:
	default: // another one is queued
	}
}

// lookAfter looks at the kernel after an event. An error is left to the next look of the
// Loop, which reports it. A resync may have repaired everything before the look.
func (k *Kernel) lookAfter(ctx context.Context, d disturbance, changed func(proxier.ForeignChange)) error {
	damaged, err := k.Look(ctx)
	if err != nil || !damaged && k.mirror.now().resets == d.resets {
		return err
	}
	k.mirror.markReported()
	d.Lost = d.Lost && !damaged // whatever events were lost: something is to be repaired
	changed(d.ForeignChange)
	return nil
}

// runCanary looks at the kernel when a jump of ours or the chain of services is missing, which it is after
// a flush of a table, or a foreign rule is in front of the jumps. It checks only when a table has changed:
// each query reads a whole table, 65 ms of CPU at 5,000 services.
func (k *Kernel) runCanary(ctx context.Context, changed func(proxier.ForeignChange)) error {
	tick := time.NewTicker(sizeCheckInterval)
	defer tick.Stop()
	var complete map[string]xtables.TableInfo // of the tables when nothing was missing
	var next time.Time                        // query not before
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		begun := time.Now()
		m := k.mirror.now()
		if begun.Before(next) || m.writing || m.damaged {
			continue
		}
		shapes := byTable(m.jumps, k.tool.ReadInfo)
		if complete != nil && maps.Equal(shapes, complete) {
			continue
		}
		complete = nil
		alive := k.servicesExist(m.jumps) && !k.overtaken(ctx)
		next = time.Now().Add(min(canaryShare*time.Since(begun), canaryInterval))
		if alive {
			complete = shapes
			continue
		}
		if damaged, err := k.Look(ctx); err == nil && damaged {
			k.mirror.markReported()
			changed(proxier.ForeignChange{})
		}
	}
}

// byTable returns the result of read for each table with jumps; nil if one failed.
func byTable[T any](jumps []layout.Jump, read func(table string) (T, error)) map[string]T {
	all := map[string]T{}
	for _, j := range jumps {
		if _, known := all[j.Table]; known {
			continue
		}
		v, err := read(j.Table)
		if err != nil {
			return nil
		}
		all[j.Table] = v
	}
	return all
}

// servicesExist reports whether the chain of services exists, if anything was synced. An error counts
// as no.
func (k *Kernel) servicesExist(jumps []layout.Jump) bool {
	if len(jumps) == 0 {
		return true
	}
	exists, err := k.tool.ChainExists("nat", layout.Services)
	return err == nil && exists
}
