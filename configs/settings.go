// Package configs has the settings of the daemon, as svcproxy.toml and flags give them.
//
// The main types are Settings, all keys with their values, and Flags.
package configs

import (
	"net/netip"
	"time"

	"svcproxy.dev/svcproxy/source/read"
)

// Settings are the effective settings of the daemon. reference.toml, beside this
// file, says what each means.
type Settings struct {
	Mode               string   // the name of one of Modes, or Auto
	Sources            []string // names; of all that there are: sourceNames
	NodeName           string   // never empty: the host name by default
	Zone               string
	Families           []string // "ipv4", "ipv6"
	LocalCIDRs         []netip.Prefix
	LocalInterfaces    []string // names, or prefixes ended by *
	Masquerade         string   // "auto", "all" or "never"
	MasqueradeBit      int      // 0 to 31
	ServiceCIDRs       []netip.Prefix
	NodePortAddresses  []string // CIDRs, "primary" or "all"
	LocalhostNodePorts bool
	HTTPAddress        string   // host:port; empty: none
	MetricsAddress     string   // host:port; empty: HTTPAddress
	StatusAddress      string   // host:port; empty: none; Auto: see StatusAt
	HTTPNames          []string // of this host, by which these may be asked

	Sync      Sync
	NFTables  NFTables
	IPVS      IPVS
	Conntrack Conntrack
	Init      Init
	OfSources
	BGP     BGP
	Health  Health
	Limits  read.Limits
	History History
	Guard   Guard
	Owners  []read.Owner
	Metrics Metrics
	Notify  Notify
	Log     Log
}

// StatusAt returns where the status page is served; empty: nowhere. Unless it is set, it is served where only this
// host can ask: at HTTPAddress, if that is loopback.
func (s *Settings) StatusAt() string {
	if s.StatusAddress != Auto {
		return s.StatusAddress
	}
	if at, err := netip.ParseAddrPort(s.HTTPAddress); err == nil && at.Addr().Unmap().IsLoopback() {
		return s.HTTPAddress
	}
	return ""
}

// Sync says how often the kernel is written and compared.
type Sync struct {
	MinInterval    time.Duration // least time between two syncs of one family; 0: none
	ResyncInterval time.Duration // how often the kernel is compared with what it should hold
}

// NFTables are the settings of nftables mode.
type NFTables struct {
	Flowtable        []string // interfaces of a flow table; empty: there is none
	FlowtableOffload bool
}

// IPVS are the settings of ipvs mode. A timeout of 0 leaves the kernel's alone.
type IPVS struct {
	Scheduler                             string
	StrictARP                             bool
	SloppyTCP                             bool // connections are taken up in the middle
	TCPTimeout, TCPFinTimeout, UDPTimeout time.Duration
	DrainTimeout                          time.Duration
}

// Conntrack are the host's settings of connection tracking, set by init. 0 or false leaves the kernel's alone.
type Conntrack struct {
	Max                   int
	TCPEstablishedTimeout time.Duration
	TCPCloseWaitTimeout   time.Duration
	UDPTimeout            time.Duration
	UDPStreamTimeout      time.Duration
	TCPBeLiberal          bool
	TCPLoose              bool // connections are taken up in the middle, which is the kernel's default
	Accounting            bool
}

// Init says what of the host svcproxy init may change.
type Init struct {
	Forwarding bool // of the whole host, in each family
}

// Health says how health checks are done.
type Health struct {
	ExecUser string // as whom programs of checks run; empty: as the daemon
}

// History says what is kept of earlier versions of service files.
type History struct {
	Keep int // versions of each file
}

// Guard says which changes of services wait for a word of the admin.
type Guard struct {
	Removals   int      // of service files, per cent of services, and of the endpoints of a service; 0: any
	Apply      string   // of service files, "auto" or "manual"
	AllowEmpty []string // sources, or URLs of answers, which are used also where they became empty
}

// Metrics says which metrics there are of single services.
type Metrics struct {
	Traffic     bool
	MaxServices int // how many are named: the first ones by name, and those with a problem

	ServiceLabels []string // that these metrics have, by their keys
}

// Notify says what is called for each change of a state. One of Command and URL is set, or none.
type Notify struct {
	Command []string // a program and its arguments
	URL     string   // where changes are posted
	Timeout time.Duration
}

// Log says what is logged and how.
type Log struct {
	Level  string // "debug", "info", "warn" or "error"
	Format string // "text" or "json"
}
