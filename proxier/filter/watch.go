package filter

import (
	"context"
	"errors"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"svcproxy/netutil/nft"
	"svcproxy/netutil/xtables"
	"svcproxy/proxier"
)

const (
	// The legacy variant, which tells of nothing, is asked whether our rules are there
	// when this many times as long has passed as the last question took, or canaryInterval.
	// That costs a process for each table, and one more.
	canaryShare    = 20
	canaryInterval = 5 * time.Second

	// glanceInterval is how often it is looked whether a table has another size than
	// before, and there is a reason to ask. That costs a system call for each.
	sizeCheckInterval = 250 * time.Millisecond
)

// restFor is the least time between two looks that events cause: whoever writes rules
// all the time must not keep us reading all of them.
const minLookInterval = time.Second

// Watch calls changed with what others have done to our rules, when a look has shown
// that something is to be repaired, until ctx ends, whose error it returns. The nft
// variant hears of it at once, the legacy variant asks every few seconds. It runs
// beside the other methods.
func (k *Kernel) Watch(ctx context.Context, changed func(proxier.ForeignChange)) error {
	if k.events == nil {
		return k.runCanary(ctx, changed)
	}
	return k.listen(ctx, changed)
}

// events are what nf_tables tells of changes by others.
type events struct {
	conn    *nft.Conn
	monitor *nft.Monitor

	watching atomic.Bool
	dirty    atomic.Bool // something may have been changed since the tables were last read
}

// nftTables returns the tables of the nft variant that there may be.
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
	e := &events{conn: conn}
	e.monitor, err = nft.NewNameMonitor(nft.Names{
		Tables: nftTables(v6), Ours: Prefix, Own: xtables.Committed, Scratch: probePrefix,
		Others: "FORWARD", Touched: func() { e.dirty.Store(true) }, // rules of ours depend on it
	})
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return e, nil
}

func (e *events) close() error { return errors.Join(e.monitor.Close(), e.conn.Close()) }

// suspect reports whether the tables must be read. It is asked before they are.
func (e *events) mustRead() bool { return e.dirty.Swap(false) || !e.watching.Load() }

// A disturbance is what others did, and how often the mirror had been forgotten by then.
type disturbance struct {
	proxier.ForeignChange
	resets int
}

// listen looks at the kernel when nf_tables tells of changes by others.
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
			case queue <- disturbance{proxier.ForeignChange(e), k.mirror.resetCount()}:
			default: // there is a look to come
			}
		}))
	})
	k.lookAfterEvents(ctx, queue, changed)
	wg.Wait()
	return context.Cause(ctx)
}

// lookWhen looks at the kernel after each event. It works in the goroutine of the
// caller of Watch, whose network namespace is where programs run.
func (k *Kernel) lookAfterEvents(ctx context.Context, queue chan disturbance, changed func(proxier.ForeignChange)) {
	for {
		select {
		case <-ctx.Done():
			return
		case d := <-queue:
			k.lookAfter(ctx, d, changed)
			if !k.mirror.known() { // the first sync is under way, and nothing was looked at
				select {
				case queue <- d:
				default: // another will do as well
				}
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(minLookInterval):
		}
	}
}

// heed looks at the kernel after an event. An error is met again, and told, by the
// next look that the Loop asks for. A full sync, for the other family maybe, may have
// repaired everything before the look.
func (k *Kernel) lookAfter(ctx context.Context, d disturbance, changed func(proxier.ForeignChange)) {
	if damaged, err := k.Look(ctx); err == nil && (damaged || k.mirror.resetCount() != d.resets) {
		k.mirror.markReported()
		changed(d.ForeignChange)
	}
}

// askCanary looks at the kernel when a jump or a chain of ours is missing. It asks
// only when a table has changed: each question reads a whole table, 65 ms of CPU at 5,000 services.
func (k *Kernel) runCanary(ctx context.Context, changed func(proxier.ForeignChange)) error {
	tick := time.NewTicker(sizeCheckInterval)
	defer tick.Stop()
	var complete map[string]xtables.TableInfo // of the tables when all was there
	var next time.Time                        // to ask at
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		begun := time.Now()
		if begun.Before(next) || k.mirror.unsettled() {
			continue
		}
		jumps := k.mirror.currentJumps()
		shapes := byTable(jumps, k.tool.ReadInfo)
		if complete != nil && maps.Equal(shapes, complete) {
			continue
		}
		complete = nil
		// An error counts as no: iptables has one where a jump leads to a chain that is gone.
		alive, err := k.checkCanary(jumps)
		next = time.Now().Add(min(canaryShare*time.Since(begun), canaryInterval))
		if err == nil && alive {
			complete = shapes
			continue
		}
		if damaged, err := k.Look(ctx); err == nil && damaged {
			k.mirror.markReported()
			changed(proxier.ForeignChange{})
		}
	}
}

// byTable returns what ask says of each table with jumps; nil: of one it has failed.
func byTable[T any](jumps []Jump, read func(table string) (T, error)) map[string]T {
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

// canary asks for one jump of each table, and for the chain where services begin.
// Who flushes a table or deletes our chains removes these too.
func (k *Kernel) checkCanary(jumps []Jump) (bool, error) {
	asked := map[string]bool{}
	for _, j := range jumps {
		if asked[j.Table] {
			continue
		}
		asked[j.Table] = true
		exists, err := k.tool.RuleExists(j.Table, j.Chain, strings.Fields(j.Rule)...)
		if err != nil || !exists {
			return false, err
		}
	}
	if len(jumps) == 0 { // nothing is synced yet
		return true, nil
	}
	return k.tool.ChainExists("nat", Services)
}

// jumpsNow returns the rules of built-in chains that lead to ours; none while that is unknown.
func (m *mirror) currentJumps() []Jump {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.chains == nil {
		return nil
	}
	return m.jumps
}
