// Package ipvs is the backend that balances with IPVS, the kernel's load balancer.
//
//	State ──► virtual servers ─────────────────────► netutil/lvs
//	      ├─► addresses of our dummy device ───────► netutil/links
//	      └─► chains and sets (proxier/filter) ────► iptables, netutil/ipset
//
// IPVS sees packets to addresses of this host only. So service addresses that no
// other device has are put on a device of ours; packets to no service there are
// refused by chains and sets, or daemons of the host would answer.
//
// IPVS has no transactions and no owners. A mirror of what it holds tells what to
// send, and a record on disk which virtual servers are ours: existing ones that are
// not recorded are foreign, and never touched.
//
//	ipvs.go, servers.go, way.go, text.go  the Backend, and the servers of a State
//	resync.go, delta.go            a sync: by a snapshot of everything, or by a delta
//	difference.go, steps.go        what leads from one to the other, and sending it
//	drain.go, drainqueue.go        destinations whose connections go on
//	record.go, recordfile.go, namespace.go  which servers are ours
//	mirror.go, look.go, watch.go, repair.go looks beside the syncs, and repairs
//	foreign.go, failures.go        what cannot be served
//	retire.go                      leaving, and cleanup
package ipvs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"svcproxy.dev/svcproxy/netutil/links"
	"svcproxy.dev/svcproxy/netutil/lvs"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/bootrecord"
	"svcproxy.dev/svcproxy/proxier/filter"
	"svcproxy.dev/svcproxy/proxier/filter/layout"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// Options are the settings of ipvs mode.
type Options struct {
	StateDir  string // holds the record; empty: none is kept
	Scheduler string // for services that name none

	// DrainTimeout is how long a removed TCP destination may keep its connections.
	DrainTimeout time.Duration

	// How long the kernel keeps idle connections of the whole namespace; 0: unchanged.
	TCPTimeout, TCPFinTimeout, UDPTimeout time.Duration

	// Leaving: there will be no Sync, only the removal of what an earlier run made. Then
	// features are not probed, because that adds rules.
	Leaving bool

	Log *slog.Logger // for warnings of foreign virtual servers; nil: none
}

// A Backend keeps one family's virtual servers, addresses, chains and sets in step with
// a State. It implements proxier.Backend.
type Backend struct {
	fam  policy.Family
	opts Options
	log  *slog.Logger

	conn        *lvs.Conn
	device      *links.Dummy
	kernel      *filter.Kernel
	rules       *layout.Rules
	unsupported *layout.Unsupported // of the State that is synced
	record      *record
	unsent      map[lvs.Key]struct{} // that the running Sync has not added yet

	drainQueue drainQueue // of drains

	// What the kernel holds after the last Sync. servers is nil if that is unknown.
	servers map[lvs.Key]*server
	claims  *claims
	bound   map[netip.Addr]struct{} // addresses of our device
	members map[netip.Addr]struct{} // of the set of bound addresses: those of services, and where servers drain
	orphans map[netip.Addr]int      // how many servers there are only kept to drain
	refused refused
	foreign map[lvs.Key]struct{} // those of refused that were logged
	retries retrySchedule        // of the others of refused

	mirror mirror     // for looks beside Syncs
	lookMu sync.Mutex // held by Look
}

// New returns a Backend for the network namespace of the caller. It fails if the kernel
// has no IPVS, no dummy devices or no ip sets, the host no iptables, or either lacks what
// all services need, which it probes. What only some services need may be missing.
func New(ctx context.Context, fam policy.Family, opts Options) (*Backend, error) {
	b := &Backend{fam: fam, opts: opts, log: orDiscard(opts.Log), rules: layout.NewIPVSRules(fam)}
	if err := b.open(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("ipvs mode, %s: %w", fam, err), b.Close())
	}
	return b, nil
}

func (b *Backend) open(ctx context.Context) (err error) {
	if b.conn, err = lvs.Dial(ctx); err != nil {
		return err
	}
	if b.device, err = links.OpenDummy(); err != nil {
		return err
	}
	if err = b.device.Probe(); err != nil {
		return err
	}
	if err = b.openRecord(b.opts.StateDir); err != nil {
		return err
	}
	if b.kernel, err = filter.Open(ctx, b.fam); err != nil {
		return err
	}
	b.kernel.SetLog(b.log)
	b.unsupported = layout.NewUnsupported(b.kernel.Probe, b.rules)
	if b.opts.Leaving {
		return nil
	}
	return b.unsupported.Probe(ctx)
}

func (b *Backend) openRecord(dir string) error {
	here, err := bootrecord.Here()
	if err != nil {
		return err
	}
	var damaged int
	if b.record, damaged, err = readRecord(dir, b.fam, here); err != nil {
		return err
	}
	if damaged > 0 {
		b.log.Warn("the record of our virtual servers is damaged: those it does not name are left alone", "file", b.record.file.Path(), "damaged_lines", damaged)
	}
	return nil
}

// Close closes the sockets and leaves the kernel as it is.
func (b *Backend) Close() error {
	var errs []error
	if b.conn != nil {
		errs = append(errs, b.conn.Close())
	}
	if b.device != nil {
		b.device.Close()
	}
	if b.kernel != nil {
		errs = append(errs, b.kernel.Close())
	}
	return errors.Join(errs...)
}

// Sync implements proxier.Backend. It continues after failures, so that a server that
// the kernel refuses does not block others. A change that cannot be written, because
// others removed what it changes, is followed by a comparison of everything.
func (b *Backend) Sync(ctx context.Context, st *policy.State, delta *policy.Delta) error {
	err := b.sync(ctx, st, delta)
	b.unsupported.SyncEnded(err)
	if errors.Is(err, lvs.ErrReloaded) {
		err = fmt.Errorf("%w: %w", proxier.ErrRestart, err)
	}
	if err != nil {
		return fmt.Errorf("ipvs, %s: %w", b.fam, b.rules.Blame(err))
	}
	b.logForeign()
	b.mirror.end(b.servers, b.bound, b.foreign)
	b.retries.count(b.refused, time.Now())
	return proxier.JoinPartialErrors(b.unserved(), b.unsupported.Unserved())
}

func (b *Backend) sync(ctx context.Context, st *policy.State, delta *policy.Delta) error {
	if delta != nil && b.servers != nil && b.kernel.CanApply() && b.unsupported.CanFollow(delta) {
		err := b.written(b.applyDelta(ctx, st, b.unsupported.Delta(delta)))
		if err == nil || ctx.Err() != nil {
			return err
		}
		b.log.Warn("writing a change failed, comparing everything", "family", b.fam, "err", err)
	}
	b.forgetMirror()
	return b.written(b.resync(ctx, st))
}

// written ends a write. After an error nothing is known of what the kernel holds.
func (b *Backend) written(err error) error {
	b.disownUnsent()
	if err = b.recorded(err); err != nil {
		b.servers = nil
	}
	return err
}

// recorded completes the record after a Sync, and returns the error of either, after
// which it is unknown what the kernel holds.
func (b *Backend) recorded(err error) error {
	if err != nil {
		b.forgetMirror()
	}
	flushErr := b.record.flush()
	if flushErr != nil {
		b.forgetMirror()
	}
	return errors.Join(err, flushErr)
}

// PieceSize implements proxier.Piecer.
func (b *Backend) PieceSize() int { return 5_000 }

// Slots implements proxier.Piecer: each virtual server has destinations of its own.
func (b *Backend) Slots(p *policy.Pool) int { return len(p.Targets) }

// SharesPool implements proxier.Piecer: rules balance to a pool for local sources.
func (b *Backend) SharesPool(f *policy.Frontend) bool { return f.Split() }

// Warnings implements proxier.Warner.
func (b *Backend) Warnings() []string { return b.kernel.Warnings() }

// Plan implements proxier.Backend.
func (b *Backend) Plan(ctx context.Context, st *policy.State) ([]proxier.Change, error) {
	changes, err := b.plan(ctx, st)
	if err != nil {
		return nil, fmt.Errorf("ipvs, %s: %w", b.fam, err)
	}
	return changes, nil
}

// Cleanup implements proxier.Backend.
func (b *Backend) Cleanup(ctx context.Context) error {
	b.forgetMirror()
	if err := errors.Join(b.remove(ctx), b.kernel.Cleanup(ctx)); err != nil {
		return fmt.Errorf("ipvs, %s: removing what is ours: %w", b.fam, err)
	}
	return nil
}

var (
	_ proxier.Watcher = (*Backend)(nil)
	_ proxier.Retirer = (*Backend)(nil)
	_ proxier.Warner  = (*Backend)(nil)
)
