package ipvs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"svcproxy.dev/svcproxy/internal/times"
	"svcproxy.dev/svcproxy/netutil/links"
	"svcproxy.dev/svcproxy/netutil/lvs"
	"svcproxy.dev/svcproxy/proxier"
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
	owner
	holdings
	lookout
	opts Options

	kernel      *filter.Kernel
	rules       *layout.Rules
	unsupported *layout.Unsupported // of the State that is synced
}

// New returns a Backend for the network namespace of the caller. It fails if the kernel
// has no IPVS, no dummy devices or no ip sets, the host no iptables, or either lacks what
// all services need, which it probes. What only some services need may be missing.
func New(ctx context.Context, fam policy.Family, opts Options) (*Backend, error) {
	b := &Backend{
		owner:   owner{fam: fam, log: orDiscard(opts.Log)},
		lookout: lookout{v6: fam == policy.IPv6, timeouts: lvs.Timeouts{TCP: opts.TCPTimeout, TCPFin: opts.TCPFinTimeout, UDP: opts.UDPTimeout}},
		opts:    opts,
		rules:   layout.NewIPVSRules(fam),
	}
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

// Close closes the sockets and leaves the kernel as it is.
func (b *Backend) Close() error {
	err := b.close()
	if b.kernel != nil {
		err = errors.Join(err, b.kernel.Close())
	}
	return err
}

// PieceSize implements proxier.Piecer.
func (b *Backend) PieceSize() int { return 5_000 }

// Slots implements proxier.Piecer: each virtual server has destinations of its own.
func (b *Backend) Slots(p *policy.Pool) int { return len(p.Targets) }

// SharesPool implements proxier.Piecer: rules balance to a pool for local sources.
func (b *Backend) SharesPool(f *policy.Frontend) bool { return f.Split() }

// Warnings implements proxier.Warner.
func (b *Backend) Warnings() []string { return b.kernel.Warnings() }

// Look implements proxier.Backend. It reads servers one by one, on sockets of its own,
// and notes those that differ, which the next Sync repairs. It does not compare foreign
// servers, and ignores what Watch has reported, whose caller requests a sync.
func (b *Backend) Look(ctx context.Context) (bool, error) {
	differs, err := b.compareKernel(ctx, nil)
	damaged, rulesErr := b.kernel.Look(ctx)
	if err = errors.Join(err, rulesErr); err != nil {
		return false, fmt.Errorf("ipvs, %s: looking at the kernel: %w", b.fam, err)
	}
	return differs && !b.mirror.reported() || damaged && !b.kernel.Reported(), nil
}

// Watch calls changed with each foreign change that the next Sync repairs, until ctx
// ends, whose error it returns. It runs beside the other methods. It soon notices that
// all virtual servers are gone, as after ipvsadm -C; only a look finds that single ones,
// or addresses, differ.
func (b *Backend) Watch(ctx context.Context, changed func(proxier.ForeignChange)) error {
	conn, err := lvs.Dial(ctx) // in the network namespace of the caller
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	var asking sync.WaitGroup
	asking.Go(func() { b.runCanary(ctx, conn, func() { changed(proxier.ForeignChange{}) }) })
	err = b.kernel.Watch(ctx, changed)
	cancel()
	asking.Wait()
	return err
}

// NextDue returns when a Sync with an empty delta has something to do: connections may
// have drained or timed out, the last Sync left repairs to the next, or the kernel may
// accept now what it refused. Zero: not before something changes. It must be called
// from the goroutine that calls Sync.
func (b *Backend) NextDue() time.Time {
	if b.servers == nil { // the next Sync compares everything
		return time.Time{}
	}
	if b.mirror.unrepaired() {
		return time.Now()
	}
	return times.Due(b.nextDrainCheck(), b.retryDue)
}
