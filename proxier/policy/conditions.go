package policy

import (
	"net/netip"
	"time"

	"svcproxy.dev/svcproxy/source"
)

// Conditions are what is known of the endpoints of a service beside where it is written, by
// source.Service.EndpointAt: what checks have found, drains, slow starts. They are never
// changed once made; nil: nothing is known.
type Conditions map[netip.AddrPort]Condition

// A Condition is that of one endpoint. The zero Condition: nothing is known.
type Condition struct {
	Check   source.CheckResult // of a service that has a health check; zero: no result yet
	Settled bool               // it failed for so long that its connections may be closed for that
	Drained bool               // it is to get no new connections
	Overdue bool               // it is drained, and the time that its connections had is over, see Drain.Until
	Share   uint8              // tenths of its weight, 1 to 9, in a slow start; 0: all of it

	// Returning: all that could stand in for it have failed, and those that pass do so again so
	// shortly that others may follow. Of one that fails: it is one of those, as it failed when they did.
	Returning bool
}

// A Detail is what people want to know of a Condition besides.
type Detail struct {
	Since time.Time     // the Condition's Check, or the slow start, is so; zero: not known
	Asked time.Time     // when the last answer of the check came, or should have; zero: none yet
	Took  time.Duration // of that
	Error string        // of that, or why it is not asked now; empty: it was good. Escaped, of bounded length
	Drain *Drain        // nil: it is not drained
}

// A Drain says who drains an endpoint, or this host. Its texts are escaped, and of bounded length.
type Drain struct {
	Reason string    `json:"reason,omitempty"`
	By     string    `json:"by"`             // the user
	At     time.Time `json:"since"`          // it began
	Until  time.Time `json:"until,omitzero"` // established connections may last; zero: until they end
}

// Of returns the condition of an endpoint.
func (c Conditions) Of(svc *source.Service, e *source.Endpoint) Condition {
	if len(c) == 0 {
		return Condition{}
	}
	return c[svc.EndpointAt(e)]
}

// A Subject is a service, and what is known of its endpoints.
type Subject struct {
	*source.Service
	Conditions Conditions
}
