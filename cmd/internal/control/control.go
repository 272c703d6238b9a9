// Package control is the control socket of a running svcproxy: HTTP with JSON
// bodies over a unix socket in the run directory. One daemon has it at a time.
//
// The main types are Server, with the Routes that a daemon answers; Client; Status, and Summary, its first part.
package control

import (
	"path/filepath"
	"time"

	"svcproxy.dev/svcproxy/proxier/conditions"
	"svcproxy.dev/svcproxy/proxier/report"
	"svcproxy.dev/svcproxy/source"
)

// A Daemon is which daemon runs, and how it does.
type Daemon struct {
	Version  string    `json:"version"`
	PID      int       `json:"pid"`
	Started  time.Time `json:"started"`
	Ready    bool      `json:"ready"`   // the first complete sync is done
	Healthy  bool      `json:"healthy"` // no change has waited too long for a sync
	Settings Settings  `json:"settings"`
}

// State says in a word how the daemon does.
func (d *Daemon) State() string {
	switch {
	case !d.Healthy:
		return "unhealthy"
	case d.Ready:
		return "ready"
	}
	return "starting"
}

// A Status is what a running daemon tells of itself.
type Status struct {
	Daemon
	Sources []source.Status      `json:"sources"`
	Loop    report.Status        `json:"loop"`
	Drains  []conditions.Drained `json:"drains,omitempty"` // that of this host first
	Announced
	Warnings []string       `json:"warnings,omitempty"`        // of the host and of listeners
	Faults   []source.Fault `json:"settings_faults,omitempty"` // of the present svcproxy.toml; warnings too
	Restart  []string       `json:"restart_needed,omitempty"`  // settings that changed but are only read at start
}

// Settings is what the daemon made of its settings and of the host.
type Settings struct {
	ConfigDir         string   `json:"config_dir"`
	Mode              string   `json:"mode"` // never "auto"
	Families          []string `json:"families"`
	NodeName          string   `json:"node_name"`
	Zone              string   `json:"zone,omitempty"`
	NodePortAddresses []string `json:"node_port_addresses"`
}

// socketPath returns where the socket is.
func socketPath(runDir string) string { return filepath.Join(runDir, "svcproxy.sock") }
