package policy

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"svcproxy.dev/svcproxy/source"
)

// A Family is an address family.
type Family uint8

// The families, by their IP version.
const (
	IPv4 Family = 4
	IPv6 Family = 6
)

func (f Family) String() string {
	if f == IPv6 {
		return "ipv6"
	}
	return "ipv4"
}

// Title returns the family as people and Kubernetes write it.
func (f Family) Title() string {
	if f == IPv6 {
		return "IPv6"
	}
	return "IPv4"
}

// FamilyOf returns the family of a, which must be valid and not IPv4-mapped.
func FamilyOf(a netip.Addr) Family {
	if a.Is4() {
		return IPv4
	}
	return IPv6
}

// Bits returns the length of the family's addresses, 32 or 128.
func (f Family) Bits() int {
	if f == IPv6 {
		return 128
	}
	return 32
}

// Unspecified returns 0.0.0.0 or ::.
func (f Family) Unspecified() netip.Addr {
	if f == IPv6 {
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}

// A Kind says why an address is one of ours.
type Kind uint8

// The kinds of a frontend.
const (
	VIP Kind = iota
	External
	LoadBalancer
	NodePort
)

func (k Kind) String() string {
	return [...]string{"vip", "external", "load-balancer", "node-port"}[k]
}

// A FrontendKey is what a packet is addressed to. No two frontends of a State
// have the same Addr, Protocol and Port.
type FrontendKey struct {
	Addr     netip.Addr // unspecified for a node port: see Host.Addrs
	Protocol source.Protocol
	Port     uint16
	Kind     Kind
}

// A ServicePortName names one port of a service.
type ServicePortName struct {
	source.Key
	Port string // may be empty
}

// String returns "namespace/name:port", or "namespace/name" for a port without name.
func (n ServicePortName) String() string {
	if n.Port == "" {
		return n.Key.String()
	}
	return n.Key.String() + ":" + n.Port
}

// A Frontend is one thing a packet can be addressed to, and what becomes of it.
// All policy is already decided. It is never changed once made.
type Frontend struct {
	Key         FrontendKey
	ServicePort ServicePortName

	// Placed: a node port that NodePortAddrs serve in place of Host.NodePortAddrs; sorted.
	Placed        bool
	NodePortAddrs []netip.Addr

	Outside   Route // for everyone
	FromLocal Route // for host processes and local sources; equals Outside where nothing differs

	// Restricted: sources outside SourceRanges are dropped, before anything else
	// is looked at. SourceRanges are sorted, do not overlap, and may be empty.
	Restricted   bool
	SourceRanges []netip.Prefix
}

// Split reports whether host processes and local sources are treated differently.
func (f *Frontend) Split() bool { return f.FromLocal != f.Outside }

// Balances reports whether a packet may be balanced, from wherever it comes.
func (f *Frontend) Balances() bool {
	return f.Outside.Action == Balance || f.FromLocal.Action == Balance
}

// Refusal returns what is done with packets that are not balanced; Balance: all are.
func (f *Frontend) Refusal() Action { return cmp.Or(f.Outside.Action, f.FromLocal.Action) }

// A Route says what becomes of a packet.
type Route struct {
	Action     Action
	Masquerade Masquerade // of balanced packets
	Pool       *Pool      // never nil; has targets if and only if Action is Balance
}

// An Action is what is done with a new connection.
type Action uint8

// Balance: sent to a target. Reject: TCP reset, else ICMP port unreachable. Drop: nothing is answered.
const (
	Balance Action = iota
	Reject
	Drop
)

func (a Action) String() string { return [...]string{"balance", "reject", "drop"}[a] }

// Masquerade says whose source address is replaced by one of this node.
// Hairpin traffic (a target that reaches itself) always is, see State.Hairpins.
type Masquerade uint8

// Whom a route masquerades.
const (
	NoOne         Masquerade = iota
	NonLocal                 // everyone but the sources of Host.LocalCIDRs and Host.LocalInterfaces
	HostProcesses            // only packets that this host itself sends
	Everyone
)

func (m Masquerade) String() string {
	return [...]string{"no one", "non-local", "host processes", "everyone"}[m]
}

// A Scope says which endpoints a pool was chosen from.
type Scope uint8

// ClusterScope: all endpoints. NodeScope: those of this node.
const (
	ClusterScope Scope = iota
	NodeScope
)

func (s Scope) String() string { return [...]string{"cluster", "local"}[s] }

// A Pool is a set of targets that frontends of one service port share. There
// are at most two for each service port and family. ServicePort and Scope name
// it; session affinity is kept for each pool.
type Pool struct {
	ServicePort ServicePortName
	Scope       Scope
	Protocol    source.Protocol
	Affinity    time.Duration // 0: none
	Scheduler   string        // of IPVS; empty: the setting
	Hash        Hash          // of scheduler source.Maglev; zero: another scheduler, or chance

	// Forward is how IPVS gets packets to targets. What rules balance, the packets of host
	// processes and local sources, is masqueraded whatever it says.
	Forward source.Forwarding

	SchedulerFlags source.SchedulerFlags     // of Scheduler
	OnePacket      bool                      // IPVS balances each packet by itself, and remembers no connection; of UDP only
	Limits         map[netip.AddrPort]Limits // of Targets and Kept that have some, in IPVS; nil: none has

	Targets []Target         // get new connections; sorted by address and port, no duplicates
	Kept    []netip.AddrPort // get none, keep those they have (weight 0, not near, serving only); sorted
	Closed  []netip.AddrPort // get none, and those they have are closed; sorted
	Down    []netip.AddrPort // those of Kept whose check fails: what they have not answered yet goes to others; sorted

	CloseRemoved bool // connections of an endpoint that is in none of these any more are closed, too
}

// A Hash says how a client's address chooses its target: every host of the same targets
// chooses the same.
type Hash struct {
	On source.HashOn // NotHashed: it does not

	// Endpoints is how many endpoints the service has in this family, used or not: the
	// size of a table is of them, so that it stays when a target leaves for a while.
	Endpoints int
}

// Limits say when an endpoint gets no new connections, by those that it has at one frontend: from Max
// on, until they are fewer than Min; Min 0: than three quarters of Max.
type Limits struct{ Max, Min uint32 }

// A Target is where a packet is sent.
type Target struct {
	address
	port    uint16
	Weight  uint16 // at least 1
	Settled uint16 // Weight once a slow start is over, and until one begins; 0: the service has none
}

// NewTarget returns one of a service without slow start. Its address is valid and not IPv4-mapped.
func NewTarget(at netip.AddrPort, weight uint16) Target {
	return Target{address: addressOf(at.Addr()), port: at.Port(), Weight: weight}
}

// AddrPort returns its address and port.
func (t Target) AddrPort() netip.AddrPort { return netip.AddrPortFrom(t.Addr(), t.port) }

// Port returns its port.
func (t Target) Port() uint16 { return t.port }

func (t Target) String() string { return t.AddrPort().String() }

// compare orders targets of one family by address and port.
func (t Target) compare(o Target) int {
	return cmp.Or(t.address.compare(o.address), cmp.Compare(t.port, o.port))
}

// WeightOf returns the sum of the weights.
func WeightOf(targets []Target) (sum uint64) {
	for _, t := range targets {
		sum += uint64(t.Weight)
	}
	return sum
}

// Compare orders keys by address, protocol, port and kind.
func (k FrontendKey) Compare(o FrontendKey) int {
	return cmp.Or(
		k.Addr.Compare(o.Addr),
		cmp.Compare(k.Protocol, o.Protocol),
		cmp.Compare(k.Port, o.Port),
		cmp.Compare(k.Kind, o.Kind),
	)
}

// A FrontendIndex finds frontends by what packets are addressed to, of whatever service.
type FrontendIndex map[FrontendKey]*Frontend

// Add adds frontends.
func (x FrontendIndex) Add(list []*Frontend) {
	for _, f := range list {
		x[f.Key.WithoutKind()] = f
	}
}

// Find returns the frontend that has the packets of f; nil: there is none.
func (x FrontendIndex) Find(f *Frontend) *Frontend { return x[f.Key.WithoutKind()] }

// WithoutKind returns what packets are addressed to.
func (k FrontendKey) WithoutKind() FrontendKey {
	k.Kind = 0
	return k
}

// TargetAddrs returns the addresses of Targets.
func (p *Pool) TargetAddrs() []netip.AddrPort {
	list := make([]netip.AddrPort, len(p.Targets))
	for i, t := range p.Targets {
		list[i] = t.AddrPort()
	}
	return list
}

// Targeted reports whether an endpoint gets new connections.
func (p *Pool) Targeted(a netip.AddrPort) bool {
	_, ok := slices.BinarySearchFunc(p.Targets, a, func(t Target, a netip.AddrPort) int { return t.AddrPort().Compare(a) })
	return ok
}

// PoolsOf returns the pools of frontends, each once.
func PoolsOf(list []*Frontend) (pools []*Pool) {
	seen := make(map[*Pool]bool)
	for _, f := range list {
		for _, p := range []*Pool{f.Outside.Pool, f.FromLocal.Pool} {
			if !seen[p] {
				seen[p] = true
				pools = append(pools, p)
			}
		}
	}
	return pools
}
