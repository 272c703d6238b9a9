// Package modes lists the modes, a Mode for each kernel subsystem that can hold services. It has what the rest of
// svcproxy must know of one: how its Backend is opened, what it needs of the kernel, and what it can do.
package modes

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/filter/layout"
	"svcproxy.dev/svcproxy/proxier/healthz"
	"svcproxy.dev/svcproxy/proxier/iptables"
	"svcproxy.dev/svcproxy/proxier/ipvs"
	"svcproxy.dev/svcproxy/proxier/nftables"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// All modes are in the order in which auto prefers them.
var All = []Mode{
	{
		Mode: configs.NFTablesMode,
		Open: func(ctx context.Context, fam policy.Family, c OpenConfig) (Backend, error) {
			return nftables.New(ctx, fam, nftables.Options{Flowtable: c.NFTables.Flowtable, Offload: c.NFTables.FlowtableOffload, Log: c.Log})
		},
		Remove:     func(ctx context.Context, fam policy.Family, _ OpenConfig) error { return nftables.Cleanup(ctx, fam) },
		Remembered: nftables.Remembered,
		Objects:    nftables.Objects,
		Compare: func(before, after *policy.State, _ configs.Settings) ([]proxier.Change, error) {
			return nftables.Compare(before, after)
		},
		CountedAs: healthz.NftablesSync,
		TakesUp:   []Sysctl{{TCPLoose, "1"}},
	},
	{
		Mode: configs.IPVSMode,
		Open: func(ctx context.Context, fam policy.Family, c OpenConfig) (Backend, error) {
			s := c.IPVS
			return ipvs.New(ctx, fam, ipvs.Options{
				StateDir: c.StateDir, Scheduler: s.Scheduler, DrainTimeout: s.DrainTimeout,
				Leaving: c.Leaving, TCPTimeout: s.TCPTimeout, TCPFinTimeout: s.TCPFinTimeout, UDPTimeout: s.UDPTimeout,
				Log: c.Log,
			})
		},
		// What is in IPVS and on our device. Chains and sets are removed with those of iptables mode.
		Remove: func(ctx context.Context, fam policy.Family, c OpenConfig) error {
			return ipvs.Cleanup(ctx, fam, c.StateDir, c.Log)
		},
		// With the settings of the kernel that decide whether IPVS masquerades, and who answers ARP for the
		// addresses of svcproxy0.
		Balancing: Balancing{
			BindsAddresses: true, Balancer: "IPVS", HashTable: "IPVS (mh)",
			PacketSysctls: []string{"net/ipv4/vs/conntrack", "net/ipv4/conf/all/arp_ignore", "net/ipv4/conf/all/arp_announce"},
		},
		DrainTimeout: func(s configs.Settings) time.Duration { return s.IPVS.DrainTimeout },
		Objects:      ipvs.Objects,
		Compare: func(before, after *policy.State, s configs.Settings) ([]proxier.Change, error) {
			return ipvs.Compare(before, after, ipvs.Options{Scheduler: s.IPVS.Scheduler, DrainTimeout: s.IPVS.DrainTimeout})
		},
		RulesOf: configs.IPTablesMode.Name, Forward: layout.Forward,
		ByNameOnly: true,
		Needs: func(s configs.Settings) Needs { // mh too, which any service may name as scheduler maglev
			return Needs{
				Modules: []Module{{Name: "ip_vs"}, {Name: "ip_vs_" + s.IPVS.Scheduler}, {Name: "ip_vs_mh"}, {Name: "dummy"}, {Name: "xt_ipvs"}},
				Sysctls: ipvsSysctls(s.IPVS),
				Quirks:  reuseSysctls(kernelRelease()),
			}
		},
		TakesUp: []Sysctl{{TCPLoose, "1"}, {SloppyTCP, "1"}},
	},
	{
		Mode: configs.IPTablesMode,
		Open: func(ctx context.Context, fam policy.Family, c OpenConfig) (Backend, error) {
			b, err := iptables.New(ctx, fam)
			if err != nil {
				return nil, err
			}
			if c.Log != nil {
				b.SetLog(c.Log)
			}
			return b, nil
		},
		// Chains and sets, those of ipvs mode among them.
		Remove:     func(ctx context.Context, fam policy.Family, _ OpenConfig) error { return iptables.Cleanup(ctx, fam) },
		Remembered: iptables.Remembered,
		Objects:    iptables.Objects,
		Compare: func(before, after *policy.State, _ configs.Settings) ([]proxier.Change, error) {
			return iptables.Compare(before, after)
		},
		RulesOf: configs.IPTablesMode.Name, Forward: layout.Forward,
		Needs: func(configs.Settings) Needs { // xt_recent with long lists, whose length cannot be changed later
			return Needs{Modules: []Module{{Name: "xt_recent", Options: []string{
				fmt.Sprintf("ip_list_tot=%d", recentClients), fmt.Sprintf("ip_list_hash_size=%d", recentBuckets),
			}}}}
		},
		VerifyClients: verifyRecent,
	},
}

// A Mode is one kernel subsystem that can hold services. Open, Objects and Compare are set in all; what else is not,
// the mode does not need.
type Mode struct {
	configs.Mode // what settings and service files may ask of it

	// Open returns the backend of one family, or why this host cannot have it.
	Open func(ctx context.Context, fam policy.Family, c OpenConfig) (Backend, error)

	// Remove removes what the mode may have left of one family, without what Open
	// needs. Nil: the backend's Cleanup does.
	Remove func(ctx context.Context, fam policy.Family, c OpenConfig) error

	// Remembered returns the endpoint of a pool that session affinity keeps for a client; nil: none. Nil: the
	// mode does not know.
	Remembered func(ctx context.Context, p *policy.Pool, client netip.Addr) (*proxier.Remembered, error)

	// Objects returns what the mode should have in the kernel for a State, which holds one
	// frontend, and whether it is there.
	Objects func(ctx context.Context, st *policy.State) ([]proxier.Object, error)

	// Compare returns which kernel objects differ between two States of a family under
	// settings. It asks no kernel: this host may lack the mode.
	Compare func(before, after *policy.State, s configs.Settings) ([]proxier.Change, error)

	Balancing // what it does to packets beside rules

	RulesOf string // the mode that removes the chains and sets of this one: all of the same share them by name
	Forward string // chain that accepts forwarded traffic of services, whatever the policy of FORWARD; empty: none can

	// ByNameOnly: init prepares a host for it where it is named only. Auto takes it
	// where nothing else works.
	ByNameOnly bool

	// DrainTimeout is asked by DrainTimeoutUnder. Nil: the mode does not drain. Of one that does, Open with Leaving lets
	// the connections end that an earlier run left; its backends are Retirers.
	DrainTimeout func(configs.Settings) time.Duration

	CountedAs string // the metric of proxier/healthz that counts failed syncs; empty: none has the mode's name

	TakesUp []Sysctl // what takes up connections in the middle

	Needs func(configs.Settings) Needs // nil: nothing; asked by NeedsUnder

	// VerifyClients says what is wrong with how the kernel remembers clients with
	// session affinity, or nothing. sys is where modules have their parameters.
	VerifyClients func(sys string) string
}

// Balancing is what a mode does to packets beside rules. Without any of it, rules do all.
type Balancing struct {
	BindsAddresses bool     // addresses of services are bound to this host
	Balancer       string   // what balances outside of rules, and keeps clients with session affinity; empty: nothing
	HashTable      string   // whose table scheduler maglev is; empty: that of internal/maglev
	PacketSysctls  []string // what packets depend on besides, by paths below /proc/sys
}

// DrainTimeoutUnder returns how long connections to endpoints that left go on under settings; 0: until they end.
func (m Mode) DrainTimeoutUnder(s configs.Settings) time.Duration {
	if m.DrainTimeout == nil {
		return 0
	}
	return m.DrainTimeout(s)
}

// Needs are what a mode needs of a host besides what all modes do. Init sets all of it.
type Needs struct {
	Modules []Module
	Sysctls []Sysctl // run warns where they have another value
	Quirks  []Sysctl // that this very kernel does better with
}

// NeedsUnder returns what a mode needs under settings.
func (m Mode) NeedsUnder(s configs.Settings) Needs {
	if m.Needs == nil {
		return Needs{}
	}
	return m.Needs(s)
}

// A Module of the kernel, and with which options it is loaded.
type Module struct {
	Name    string
	Options []string
}

// Settings that let a host take up a TCP connection in the middle, which another host had.
const (
	TCPLoose  = "net/netfilter/nf_conntrack_tcp_loose" // the kernel's default is 1
	SloppyTCP = "net/ipv4/vs/sloppy_tcp"               // 0
)

// A Sysctl is a setting of the kernel by its path below /proc/sys, and the value it should have.
type Sysctl struct{ Name, Value string }

// An OpenConfig is what a mode is opened with.
type OpenConfig struct {
	configs.Settings
	StateDir string
	Log      *slog.Logger // nil: none
	Leaving  bool         // only to leave what an earlier run made
}

// A Backend is one that keeps something open. It may be a proxier.Watcher too.
type Backend interface {
	proxier.Backend
	Close() error
}

// SharesRules reports whether two modes have chains and sets of the same names, so
// that one takes over those of the other.
func (m Mode) SharesRules(other Mode) bool { return m.RulesOf != "" && m.RulesOf == other.RulesOf }

// Named returns the mode of a name, which auto is not.
func Named(name string) (Mode, error) {
	built := []string{strconv.Quote(configs.Auto)}
	for _, m := range All {
		if m.Name == name {
			return m, nil
		}
		built = append(built, strconv.Quote(m.Name))
	}
	return Mode{}, fmt.Errorf("mode %q is not in this build; set mode to %s", name, source.Either(built))
}

// Forwarding returns the mode to use where the policy of FORWARD has to stay as it is.
func Forwarding() Mode {
	return All[slices.IndexFunc(All, func(m Mode) bool { return m.Forward != "" && !m.ByNameOnly })]
}

// OfSetting returns the modes that init prepares a host for under the setting mode.
func OfSetting(setting string) (list []Mode) {
	for _, m := range All {
		if m.Name == setting || setting == configs.Auto && !m.ByNameOnly {
			list = append(list, m)
		}
	}
	return list
}

// Session affinity in iptables mode remembers clients in lists of xt_recent, one
// for each endpoint, and forgets the oldest when a list is full. The kernel's
// default is 100. Every list takes 8 bytes for each bucket from the start, and as
// many buckets as clients unless told otherwise.
const (
	recentClients = 10000
	recentBuckets = 1024
)

// verifyRecent says what is wrong with the lists of xt_recent, or nothing.
func verifyRecent(sys string) string {
	b, err := os.ReadFile(filepath.Join(sys, "xt_recent/parameters/ip_list_tot"))
	if err != nil {
		return "" // not loaded, or not for us to read
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil || n >= recentClients {
		return ""
	}
	return fmt.Sprintf("session affinity remembers only %d clients of an endpoint: module xt_recent has ip_list_tot=%d, "+
		"which cannot be changed while it is loaded; put \"options xt_recent ip_list_tot=%d ip_list_hash_size=%d\" in /etc/modprobe.d "+
		"or, where it is built in, xt_recent.ip_list_tot=%d on the kernel command line, and reboot",
		n, n, recentClients, recentBuckets, recentClients)
}

// ipvsSysctls returns what masquerading and removing servers needs of IPVS, and
// what keeps this host from answering ARP for the addresses of svcproxy0.
func ipvsSysctls(s configs.IPVS) []Sysctl {
	list := []Sysctl{
		{"net/ipv4/vs/conntrack", "1"},
		{"net/ipv4/vs/expire_nodest_conn", "1"},
		{"net/ipv4/vs/expire_quiescent_template", "1"},
	}
	if s.StrictARP {
		list = append(list,
			Sysctl{"net/ipv4/conf/all/arp_ignore", "1"},
			Sysctl{"net/ipv4/conf/all/arp_announce", "2"})
	}
	if s.SloppyTCP {
		list = append(list, Sysctl{SloppyTCP, "1"})
	}
	return list
}

// reuseSysctls returns what keeps a client's port that comes back from waiting a
// second for the end of its old connection, on the kernels, from 4.1 to before
// 5.9, that drop its first packet. Elsewhere the kernel's default is right.
func reuseSysctls(release string) []Sysctl {
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil {
		return nil
	}
	if before := func(a, b int) bool { return major < a || major == a && minor < b }; before(4, 1) || !before(5, 9) {
		return nil
	}
	return []Sysctl{{"net/ipv4/vs/conn_reuse_mode", "0"}}
}

// kernelRelease returns what uname -r says, as in "6.1.0-18-amd64".
func kernelRelease() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}
