package loop

import (
	"log/slog"
	"net/netip"
	"time"

	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/announce"
	"svcproxy.dev/svcproxy/proxier/flows"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/report"
	"svcproxy.dev/svcproxy/source"
)

// Config configures a Loop.
type Config struct {
	Backends map[policy.Family]proxier.Backend // one for each family to program; nil: it follows by SetBackends
	Flows    flows.Config                      // without Log and Looked; no Tracking: UDP flows are left alone
	Node     *policy.Node
	Reserved []netip.AddrPort // TCP ports this program itself listens on
	Limits   *source.Products // of all services together; nil: none

	Sources      []string      // in order of precedence; nothing is programmed before each of these has called Synced
	MinInterval  time.Duration // least time between two syncs of one family
	LookInterval time.Duration // how often a look compares the kernel with what it should hold
	SyncTimeout  time.Duration // after which a Sync that makes no progress is given up, see Progressed
	Piece        int           // about how many elements of a large service one Sync changes; 0: as the backend says

	Log *slog.Logger

	// Conditions knows of endpoints what their files do not say; nil: nothing.
	Conditions Conditioner

	// Announcer tells the network of addresses; nil: nothing does.
	Announcer announce.Announcer

	// Surroundings are for those who report. Its Announcer is that of the Loop.
	Surroundings report.Surroundings

	// Observer hears what the Loop does; nil: nobody does.
	Observer Observer
}

// An Observer hears what a Loop does. Its methods must not block. One that does not care for all embeds Unobserved.
type Observer interface {
	Queued(policy.Family, time.Time) // there is something to sync; from a goroutine for each family
	Synced(SyncResult)               // after each sync, from a goroutine for each family
	Holds(policy.Family)             // the backend of a family holds everything, once for each backend
	Dropped(policy.Family)           // a family is no longer programmed, after its last Synced
	NodeHealth([]NodeHealth)         // all services that have a health check node port, when any of them changed
	Accepted([]source.Unit)          // files that were accepted, without their services, before they are synced

	// Looked is called after each look for stale UDP flows, from goroutines of their own.
	Looked(fam policy.Family, removed int, took time.Duration)
}

// Unobserved is an Observer that does nothing.
type Unobserved struct{}

func (Unobserved) Queued(policy.Family, time.Time)          {}
func (Unobserved) Synced(SyncResult)                        {}
func (Unobserved) Holds(policy.Family)                      {}
func (Unobserved) Dropped(policy.Family)                    {}
func (Unobserved) NodeHealth([]NodeHealth)                  {}
func (Unobserved) Accepted([]source.Unit)                   {}
func (Unobserved) Looked(policy.Family, int, time.Duration) {}

// A SyncResult is the outcome of one Sync of one family.
type SyncResult struct {
	Family   policy.Family
	Full     bool      // Sync was called without a delta
	Queued   time.Time // when the oldest change in it arrived; zero for a resync without changes
	Start    time.Time
	Duration time.Duration
	Err      error
	Unserved *proxier.PartialError // what an otherwise successful sync could not make; nil: nothing

	Triggers []time.Time   // when the changes in it were made where they are from, as far as that is known
	Repairs  []RepairCause // why it repaired what the kernel held
}

// A Conditioner knows Conditions. It is called from the goroutine of Loop.Run, and must not block.
type Conditioner interface {
	// Use returns the conditions of a service as it is used from now on, before that is
	// programmed. Nil: the service is gone, and the result is not used.
	Use(key source.Key, svc *source.Service) policy.Conditions
	// Conditions returns those of a service in use, after Loop.Reconsider was called for it.
	Conditions(key source.Key) policy.Conditions
}

// noConditions knows of nothing.
type noConditions struct{}

func (noConditions) Use(source.Key, *source.Service) policy.Conditions { return nil }
func (noConditions) Conditions(source.Key) policy.Conditions           { return nil }
