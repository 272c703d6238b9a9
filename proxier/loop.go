package proxier

import (
	"context"
	"log/slog"
	"net/netip"
	"time"

	"svcproxy/source"
)

// Config is what a Loop works with.
type Config struct {
	Backends map[Family]Backend // one for each family to program
	Flows    Flows              // nil: UDP flows are left alone
	Node     *Node
	Reserved []netip.AddrPort // TCP ports this program itself listens on; an unspecified address stands for all

	Sources        []string      // nothing is programmed before each of these has called Synced
	MinInterval    time.Duration // least time between two syncs of one family
	ResyncInterval time.Duration // how often the kernel is compared with what it should hold
	SyncTimeout    time.Duration // after which a Sync is given up

	Log *slog.Logger

	// Called after each sync from the goroutine of the Loop, which waits for them. May be nil.
	OnSync   func(SyncResult)
	OnHealth func([]HealthCheck) // with all services that have a health check node port, when any of it changed
}

// A SyncResult tells how one Sync of one family went.
type SyncResult struct {
	Family       Family
	Full         bool      // compared with the kernel, rather than a delta
	Queued       time.Time // when the oldest change in it arrived; zero for a mere resync
	Start        time.Time
	Duration     time.Duration
	Err          error
	Services     int // in the State, after it
	Endpoints    int // of all services
	FlowsDeleted int // UDP flows
}

// A HealthCheck is what health_check_node_port of one service answers.
type HealthCheck struct {
	Key            source.Key
	Port           uint16
	LocalEndpoints int // of this node, ready, weight above 0
}

// A Loop keeps backends in step with sources. It implements source.Sink.
type Loop struct{ cfg Config }

// NewLoop returns a Loop that does nothing yet.
func NewLoop(cfg Config) *Loop { return &Loop{cfg: cfg} }

// Run works until ctx ends. The kernel then stays as it is.
func (l *Loop) Run(ctx context.Context) error { return nil }

// Apply implements source.Sink.
func (l *Loop) Apply(source.Changes) {}

// Synced implements source.Sink.
func (l *Loop) Synced(src string) {}

// SetNode tells that the node or the settings changed: everything is resolved anew and compared with the kernel.
func (l *Loop) SetNode(*Node) {}

// SetIntervals changes Config.MinInterval and Config.ResyncInterval.
func (l *Loop) SetIntervals(minimum, resync time.Duration) {}

// Resync makes the next sync, which follows at once, compare everything with the kernel.
func (l *Loop) Resync() {}

// Ready is closed after the first complete sync of all families.
func (l *Loop) Ready() <-chan struct{} { return nil }

// Alive returns when the loop last showed that it is not stuck: when it last went round, or now while it only waits.
func (l *Loop) Alive() time.Time { return time.Time{} }

// Status returns what the loop holds and how its syncs go. May be called from any goroutine, also during a sync.
func (l *Loop) Status() Status { return Status{} }
