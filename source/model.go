package source

import (
	"cmp"
	"encoding/json"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"time"
	"unique"
)

// A Key names a service. It is unique over all sources.
type Key struct {
	Namespace, Name string // DNS labels
}

func (k Key) String() string { return k.Namespace + "/" + k.Name }

// Compare orders keys by namespace, then by name.
func (k Key) Compare(o Key) int {
	return cmp.Or(cmp.Compare(k.Namespace, o.Namespace), cmp.Compare(k.Name, o.Name))
}

// A Protocol is a transport protocol, by its IANA number.
type Protocol uint8

// The protocols a port can have.
const (
	TCP  Protocol = 6
	UDP  Protocol = 17
	SCTP Protocol = 132
)

// String returns the protocol as files and kernel tools write it: tcp, udp or sctp.
func (p Protocol) String() string {
	switch p {
	case TCP:
		return "tcp"
	case UDP:
		return "udp"
	case SCTP:
		return "sctp"
	}
	return fmt.Sprintf("protocol-%d", uint8(p))
}

// A TrafficPolicy says which endpoints serve a kind of traffic.
type TrafficPolicy uint8

// Cluster: all endpoints. Local: those of this node only.
const (
	Cluster TrafficPolicy = iota
	Local
)

func (p TrafficPolicy) String() string { return wordOf(p, "cluster", "local") }

// A TrafficDistribution says which endpoints are preferred while one of them is ready.
type TrafficDistribution uint8

// Evenly prefers none; the others prefer near endpoints and fall back to those farther away:
// those of the same zone or node, or those that are meant for it by their Hints.
const (
	Evenly TrafficDistribution = iota
	PreferSameZone
	PreferSameNode
	AsHinted
)

func (d TrafficDistribution) String() string {
	return wordOf(d, "", "prefer_same_zone", "prefer_same_node", "as_hinted")
}

// A Service is one whole service with its endpoints. It is never changed once
// it has been sent on; a change is a new Service. Its tags are those of keyedBy.
type Service struct {
	Key

	VIPs            []netip.Addr `key:"vips"` // for internal traffic
	ExternalIPs     []netip.Addr `key:"external_ips"`
	LoadBalancerIPs []netip.Addr `key:"load_balancer_ips"`

	// SourceRanges says who may use all of these, and node ports. Empty: everybody.
	SourceRanges []netip.Prefix `key:"source_ranges"`

	// LoadBalancerSourceRanges says which of those may use LoadBalancerIPs. Empty: all of them.
	LoadBalancerSourceRanges []netip.Prefix `key:"load_balancer_source_ranges"`

	Ports     []Port     `key:"ports"` // at least one
	Endpoints []Endpoint `key:"endpoints"`

	// EndpointsFrom names the file beside that of the service which lists Endpoints; empty:
	// they are written with the service. It is not part of what the service means.
	EndpointsFrom string

	// WrittenPorts is how Ports are written, which such a file refers to. Nil where EndpointsFrom is empty.
	WrittenPorts []WrittenPort

	// Inherited are the keys whose values are those of [defaults] of the file. Nil where EndpointsFrom is empty.
	Inherited []string

	InternalTrafficPolicy TrafficPolicy `key:"internal_traffic_policy"` // for VIPs
	ExternalTrafficPolicy TrafficPolicy `key:"external_traffic_policy"` // for external addresses and node ports

	Masquerade Masquerading `key:"masquerade"` // of clients, on the way to endpoints

	Affinity time.Duration `key:"session_affinity"` // how long a client keeps its endpoint, 1 s to 24 h; 0: not at all

	TrafficDistribution TrafficDistribution `key:"traffic_distribution"`

	// NodePortAddresses are the addresses of a node that serve node ports, and the health
	// check node port; nil: the setting.
	NodePortAddresses *NodeAddresses `key:"node_port_addresses"`

	HealthCheckNodePort uint16 `key:"health_check_node_port"` // 0: none
	PublishNotReady     bool   `key:"publish_not_ready"`      // every endpoint counts as ready
	Scheduler           string `key:"scheduler"`              // Maglev, or one of IPVS; empty: the setting
	HashOn              HashOn `key:"hash_on"`                // of Maglev; else NotHashed

	SchedulerFlags SchedulerFlags `key:"scheduler_flags"` // of Scheduler, which is then one of IPVS
	OnePacket      bool           `key:"one_packet"`      // IPVS balances each UDP packet by itself, and remembers no connection

	Forward Forwarding `key:"forward"`

	HealthCheck      *HealthCheck     `key:"health_check"`      // how endpoints are asked whether they are alive; nil: they are not
	MinUp            uint16           `key:"min_up"`            // as many endpoints that can be used make higher tiers needless; 0 is 1
	SlowStart        time.Duration    `key:"slow_start"`        // over which the share of an endpoint that comes grows; 0: at once
	CloseConnections CloseConnections `key:"close_connections"` // of endpoints that left
	Disabled         bool             `key:"!enabled"`          // it is as if it were not there, but keeps what it claims

	Announce Means `key:"announce"` // how AnnouncedAddrs are announced while they can be used here

	// For people: one line of text, and words to choose services by. The kernel does not see them.
	Description string            `note:"description"`
	Labels      map[string]string `note:"labels"`

	// Without are addresses and ports of it that another service has: they are
	// left out. Sources leave it empty.
	Without []PortAddr `key:"left to other services"`

	// InCluster: it is a service of a Kubernetes cluster, whose pods answer any
	// source; where no source is known to be local, none of VIPs is masqueraded.
	InCluster bool `key:"in a cluster"`

	// Where it is written, and what of it no other can have, as Unique names it; for
	// messages, and not part of its meaning. Without Places nobody knows more than Pos.
	Pos    Position
	Places []Place
}

// A PortAddr is an address and port, or without address a port of the node.
type PortAddr struct {
	Protocol
	netip.AddrPort
}

// A Port is one port of a service, on all of its addresses.
type Port struct {
	Name       string // unique in the service; may be empty when it is the only one
	Protocol   Protocol
	Port       uint16 // of the service's addresses, never 0
	TargetPort uint16 // of the endpoints, never 0
	NodePort   uint16 // of the node's own addresses; 0: none
}

// A WrittenPort is what a file says of one port, or of as many as it has numbers and protocols.
type WrittenPort struct {
	Name        string
	First, Last uint16
	Protocols   []Protocol
}

// An Endpoint is one address that serves a service. Its tags are those of keyedBy.
type Endpoint struct {
	Addr netip.Addr `key:"address"`

	// Ports replaces TargetPort, by name of the service port. Nil: replaces none.
	// 0: it does not serve this port.
	Ports map[string]uint16 `key:"ports"`

	extras unique.Handle[Extras] // zero: none; a million endpoints have one each

	Weight uint16 `key:"weight"` // share of new connections relative to the others; 0: none
	Tier   uint8  `key:"tier"`   // 0 to 9; used where fewer than MinUp endpoints of lower tiers can be used

	Disabled bool `key:"!enabled"` // it gets no new connections

	// As the conditions of a Kubernetes EndpointSlice.
	Ready       bool `key:"ready"`
	Serving     bool `key:"serving"`
	Terminating bool `key:"terminating"`
}

// Extras are what few endpoints have, or many alike. Its tags are those of keyedBy.
type Extras struct {
	Node  string `key:"node"` // the node it runs on; empty: the node that owns Addr
	Zone  string `key:"zone"`
	Hints *Hints `key:"hints"` // whom it is meant to serve, for AsHinted; nil: nobody more than others

	// IPVS gives it no new connections from MaxConnections on, counted at each address and
	// port of the service by itself, until they are fewer than MinConnections; 0: than
	// three quarters of MaxConnections. MaxConnections 0: any number.
	MaxConnections uint32 `key:"max_connections"`
	MinConnections uint32 `key:"min_connections"`
}

// Extras returns those of the endpoint.
func (e Endpoint) Extras() (x Extras) {
	if e.extras != (unique.Handle[Extras]{}) {
		x = e.extras.Value()
	}
	return x
}

// With returns the endpoint with other Extras.
func (e Endpoint) With(x Extras) Endpoint {
	e.extras = unique.Handle[Extras]{}
	if x != (Extras{}) {
		e.extras = unique.Make(x)
	}
	return e
}

// MarshalJSON implements json.Marshaler. The extras are members like the others.
func (e Endpoint) MarshalJSON() ([]byte, error) {
	return json.Marshal(flatEndpoint{plainEndpoint(e), e.Extras()})
}

// UnmarshalJSON implements json.Unmarshaler.
func (e *Endpoint) UnmarshalJSON(b []byte) error {
	var f flatEndpoint
	if err := json.Unmarshal(b, &f); err != nil {
		return err
	}
	*e = Endpoint(f.plainEndpoint).With(f.Extras)
	return nil
}

type plainEndpoint Endpoint

type flatEndpoint struct {
	plainEndpoint
	Extras
}

// Hints say which clients an endpoint is meant for: those on some nodes, and those
// in some zones. They may be shared by endpoints.
type Hints struct {
	Nodes, Zones []string // names
}

// Port returns the number under which the endpoint serves p, 0 if it does not.
func (e *Endpoint) Port(p Port) uint16 {
	if n, ok := e.Ports[p.Name]; ok {
		return n
	}
	return p.TargetPort
}

// An AddressList is one of the three lists of addresses, by its key in a service file.
type AddressList struct {
	Key   string
	Addrs []netip.Addr
}

// AddressLists returns the three lists of addresses.
func (s *Service) AddressLists() [3]AddressList {
	return [3]AddressList{{"vips", s.VIPs}, {"external_ips", s.ExternalIPs}, {"load_balancer_ips", s.LoadBalancerIPs}}
}

// Addresses yields all of a service, in the order of files.
func (s *Service) Addresses() iter.Seq[netip.Addr] {
	return func(yield func(netip.Addr) bool) {
		for _, list := range s.AddressLists() {
			for _, a := range list.Addrs {
				if !yield(a) {
					return
				}
			}
		}
	}
}

// HasNodePort reports whether a port has a node port.
func (s *Service) HasNodePort() bool {
	return slices.ContainsFunc(s.Ports, func(p Port) bool { return p.NodePort != 0 })
}

// HasUDP reports whether a port is of UDP.
func (s *Service) HasUDP() bool {
	return slices.ContainsFunc(s.Ports, func(p Port) bool { return p.Protocol == UDP })
}

// AnnouncedAddrs returns the addresses that announce of a service is for: those of external
// traffic, or its VIPs if it has none of them, sorted, each once.
func (s *Service) AnnouncedAddrs() []netip.Addr {
	list := slices.Concat(s.ExternalIPs, s.LoadBalancerIPs)
	if len(list) == 0 {
		list = slices.Clone(s.VIPs)
	}
	slices.SortFunc(list, netip.Addr.Compare)
	return slices.Compact(list)
}

// EndpointAt returns an endpoint's address, with the port under which it serves the first port
// of the service that it serves; port 0: it serves none. It names the endpoint in the service:
// what is known of it beside its file is known of the place.
func (s *Service) EndpointAt(e *Endpoint) netip.AddrPort {
	for _, p := range s.Ports {
		if n := e.Port(p); n != 0 {
			return netip.AddrPortFrom(e.Addr, n)
		}
	}
	return netip.AddrPortFrom(e.Addr, 0)
}

// AskedAt returns where the health check of the service asks about an endpoint.
func (s *Service) AskedAt(e *Endpoint) netip.AddrPort {
	return netip.AddrPortFrom(e.Addr, cmp.Or(s.HealthCheck.Port, s.EndpointAt(e).Port()))
}
