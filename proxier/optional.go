package proxier

import (
	"context"
	"iter"
	"net/netip"

	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// A ForeignChange says that another process changed what a Backend has in the kernel.
type ForeignChange struct {
	PID     uint32 // of the process; 0: the kernel does not say
	Process string // its name
	Lost    bool   // events were lost: it is unknown whether anything was changed
}

// A Watcher is a Backend that hears of foreign changes.
type Watcher interface {
	Backend

	// Watch calls changed after each foreign change until ctx ends, whose error it
	// returns. It runs beside the other methods.
	Watch(ctx context.Context, changed func(ForeignChange)) error
}

// A Retirer is a Backend whose connections go on for a while after another one holds
// everything.
type Retirer interface {
	Backend

	// Retire lets connections end, and reports whether nothing is left but rules.
	Retire(ctx context.Context) (done bool, err error)

	// RemoveRules removes chains and sets at once.
	RemoveRules(ctx context.Context) error
}

// A Warner is a Backend that may not do all that its settings ask for, or that other programs hinder.
type Warner interface {
	Backend

	// Warnings says what of the settings is not in use, and what other programs do to its
	// objects. It runs beside the other methods.
	Warnings() []string
}

// A Piecer is a backend that says how a large change is cut in pieces.
type Piecer interface {
	// PieceSize returns about how many elements of sets, or rules, one Sync is to change of a large service.
	PieceSize() int

	// Slots returns about how many elements or rules the kernel has of a pool for each of its frontends.
	Slots(p *policy.Pool) int

	// SharesPool reports whether the kernel has something of a frontend's pools that other frontends use: all
	// frontends of a pool must change at once.
	SharesPool(f *policy.Frontend) bool
}

// A Counter is a Backend whose kernel subsystem counts connections by itself.
type Counter interface {
	Backend

	// Count calls each with what the kernel has counted for every target of these
	// addresses. It runs beside the other methods, and holds up none. An address that
	// the kernel does not serve is passed over.
	Count(ctx context.Context, addrs []FrontendAddr, each func(Pair, Count)) error
}

// A FrontendAddr is where packets to a service are sent to.
type FrontendAddr struct {
	Protocol source.Protocol
	netip.AddrPort
}

// FrontendAddrs yields where packets to services are sent to, a node port at each address of the host that
// serves it, with the service.
func FrontendAddrs(host *policy.Host, services iter.Seq[*policy.Resolved]) iter.Seq2[FrontendAddr, *policy.Resolved] {
	return func(yield func(FrontendAddr, *policy.Resolved) bool) {
		for r := range services {
			for _, f := range r.Frontends {
				for _, a := range host.Addrs(f) {
					if !yield(FrontendAddr{f.Key.Protocol, netip.AddrPortFrom(a, f.Key.Port)}, r) {
						return
					}
				}
			}
		}
	}
}

// A Pair is where packets were sent to, and the endpoint that got them.
type Pair struct {
	FrontendAddr
	Target netip.AddrPort
}

// A Count is what the kernel has counted. All but Active only grow while what is counted
// stays in the kernel. Packets and bytes are those of both directions.
type Count struct {
	Active         uint64 // connections that go on
	Connections    uint64
	Packets, Bytes uint64
}
