// Package source has the model of a service, what every source of services
// checks of it, and how a source hands its services on.
//
// The main types are Service, with its Ports and Endpoints; Unit, what is accepted or refused as one; Changes, which a Source
// hands to a Sink; and Fault, what is wrong where.
package source

import (
	"context"
	"net/netip"
	"time"
)

// A Source says what services there are.
type Source interface {
	// Run applies every service to sink, calls sink.Synced once all that exist
	// have been applied, then applies every change, until ctx ends: then it
	// returns nil. An error ends the daemon.
	Run(ctx context.Context, sink Sink) error

	// Status says what the source knows of itself. It may be called at any time
	// from any goroutine.
	Status() Status
}

// A Sink takes changes: the Loop of proxier/loop is one. Its methods do not block and may be called from any goroutine.
type Sink interface {
	// Apply takes one atomic step: no state between two of its parts is ever seen.
	Apply(Changes)
	// Synced says that source has applied all that existed when it started.
	Synced(source string)
}

// Changes is one atomic step of a source.
type Changes struct {
	Set    []Unit   // these units now hold these services, and no others
	Delete []UnitID // these units are gone
}

// A UnitID names a unit.
type UnitID struct {
	Source string // its name, as settings have it
	Name   string // the path of a file, or namespace/name of an object
}

// A Unit is a file, which is accepted or refused whole, or one object of an API.
type Unit struct {
	ID       UnitID
	Partial  bool   // what another unit has is left out of it, and the rest is used
	Since    int64  // when it was first accepted or created, in ns since 1970; 0: not known, comes last
	Version  string // tells versions of the unit apart; opaque to all but its source
	Services []*Service

	// InUse is the version of a file that is in use, with other endpoints than before: it counts where this one is refused, and if
	// that is the version in use. Nil: nothing has changed.
	InUse *Unit

	// When it was changed where it is from, as far as its source knows: once for each
	// change that is in Services for the first time. It may be long ago, or in the future.
	Changed []time.Time
}

// A Status is what a source knows of itself.
type Status struct {
	Source string       `json:"source"`
	Synced bool         `json:"synced"`
	Files  []FileStatus `json:"files,omitempty"`

	Connection *Connection  `json:"connection,omitempty"` // of a source that has one
	Objects    []FileStatus `json:"objects,omitempty"`    // of an API, of which not all is used as it stands, by namespace/name

	Warnings []string `json:"warnings,omitempty"` // of what hinders the source itself, then Notes
	Notes    int      `json:"-"`                  // how many of Warnings, the last ones, hinder nothing
}

// A FileStatus is what is known of one file.
type FileStatus struct {
	Path     string    `json:"path"`
	State    FileState `json:"state"`
	Since    time.Time `json:"since"` // of State
	Services int       `json:"services"`
	Faults   []Fault   `json:"faults,omitempty"` // warnings too
}

// A FileState says how the present text of a file relates to what is used of it.
type FileState string

// The states of a file.
const (
	Accepted FileState = "accepted" // what it says is used
	Stale    FileState = "stale"    // it is broken or cannot be read: its services stay as last accepted
	Refused  FileState = "refused"  // broken since we know it, or another holds what it claims: it has no services
	Held     FileState = "held"     // it waits for svcproxy confirm: its services stay as last accepted

	RolledBack FileState = "rolled back" // an older version is used until it changes again
)

// FileStates returns all of them.
func FileStates() []FileState { return []FileState{Accepted, Stale, Refused, Held, RolledBack} }

// A ClusterNode is what a cluster says of this host.
type ClusterNode struct {
	Zone     string
	PodCIDRs []netip.Prefix // its pods have addresses of these
	Addrs    []netip.Addr   // its primary address of each family
	Eligible bool           // load balancers may send to it
}

// A Connection is how a source reaches the server it hears of services from.
type Connection struct {
	Server    string    `json:"server,omitempty"`
	Connected bool      `json:"connected"`
	Since     time.Time `json:"since"`           // of Connected
	Error     string    `json:"error,omitempty"` // why it is not
}
