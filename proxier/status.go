package proxier

import (
	"time"

	"svcproxy/source"
)

// A Status is what a Loop tells of itself.
type Status struct {
	Families []FamilyStatus  `json:"families"`
	Services []ServiceStatus `json:"services"` // sorted by name
	Refusals []Refusal       `json:"refusals,omitempty"`
}

// A FamilyStatus tells how the syncs of one family go.
type FamilyStatus struct {
	Family       string        `json:"family"`
	LastSync     time.Time     `json:"last_sync"`       // that succeeded; zero: none yet
	Took         time.Duration `json:"took_ns"`         // the last that succeeded
	Error        string        `json:"error,omitempty"` // of the last sync, if it failed
	FailingSince time.Time     `json:"failing_since,omitzero"`
}

// A ServiceStatus is one service as it is used, over both families.
type ServiceStatus struct {
	Namespace string           `json:"namespace"`
	Name      string           `json:"name"`
	Unit      string           `json:"unit"` // the file or object it is from
	Frontends []FrontendStatus `json:"frontends"`
	Endpoints []EndpointStatus `json:"endpoints"`
	Warnings  []string         `json:"warnings,omitempty"`
}

// A FrontendStatus is one address and port of a service.
type FrontendStatus struct {
	Address string `json:"address"` // "10.96.0.10:80/tcp"; "node-port:30080/tcp"
	Kind    string `json:"kind"`
	Action  string `json:"action"`  // of everyone outside
	Targets int    `json:"targets"` // that get new connections
}

// An EndpointStatus is one endpoint of a service.
type EndpointStatus struct {
	Address string `json:"address"`
	Local   bool   `json:"local"`
	State   string `json:"state"` // "ready", "terminating", "not ready" or "weight 0"
	Weight  uint16 `json:"weight"`
}

// A Refusal is a unit that is not used as it stands, because another unit holds something it claims.
type Refusal struct {
	Unit   source.UnitID  `json:"unit"`
	Since  time.Time      `json:"since"`
	Stale  bool           `json:"stale"` // an earlier version of it is in use
	Faults []source.Fault `json:"faults"`
}
