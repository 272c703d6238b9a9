package bgp

import (
	"fmt"
	"net/netip"
	"strconv"
	"time"

	api "github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	"github.com/osrg/gobgp/v4/pkg/packet/bgp"
)

// Times of GoBGP, in seconds.
const (
	connectRetry = 5 // between attempts; one may take a second less, and the first one comes after at most two
	deferral     = 1 // at most, between a session after a restart and our routes: there is nothing to wait for
)

// Names of sets and policies, which GoBGP's requests refer to.
const (
	ribName      = "global" // GoBGP's
	importPolicy = "import"
	exportPolicy = "export"
	shutdownSet  = "shutdown"
)

var gobgpFamilies = [families]bgp.Family{bgp.RF_IPv4_UC, bgp.RF_IPv6_UC}

var apiFamilies = [families]*api.Family{
	{Afi: api.Family_AFI_IP, Safi: api.Family_SAFI_UNICAST},
	{Afi: api.Family_AFI_IP6, Safi: api.Family_SAFI_UNICAST},
}

// placeholders are next hops of routes in the table; each peer gets others, by policy. They must be
// specific, as GoBGP replaces unspecified ones by the address of the session whatever its family.
var placeholders = [families]netip.Addr{netip.MustParseAddr("192.0.2.0"), netip.MustParseAddr("100::")}

// global returns what is the same for all peers. Families are those of the table.
func (c Config) global() *api.Global {
	return &api.Global{
		Asn: c.AS, RouterId: c.RouterID.String(), ListenPort: int32(c.ListenPort),
		Families: []uint32{0, 1}, // the first two of oc.IntToAfiSafiTypeMap, IPv4 and IPv6 unicast
	}
}

// neighbor returns p as GoBGP wants it.
func (c Config) neighbor(p Peer) *api.Peer {
	hold := uint64(p.HoldTime / time.Second)
	n := &api.Peer{
		Conf:      &api.PeerConf{NeighborAddress: p.Address.String(), PeerAsn: p.AS, AuthPassword: p.Password},
		Transport: &api.Transport{RemotePort: uint32(p.Port)},
		Timers: &api.Timers{Config: &api.TimersConfig{
			HoldTime: hold, KeepaliveInterval: hold / 3, ConnectRetry: connectRetry,
		}},
	}
	if p.Source.IsValid() {
		n.Transport.LocalAddress = p.Source.String()
	}
	if p.Multihop != 0 {
		n.EbgpMultihop = &api.EbgpMultihop{Enabled: true, MultihopTtl: uint32(p.Multihop)}
	}
	if p.TTLSecurity {
		n.TtlSecurity = &api.TtlSecurity{Enabled: true, TtlMin: 255}
	}
	restart := c.GracefulRestart > 0
	if restart {
		n.GracefulRestart = &api.GracefulRestart{
			Enabled: true, RestartTime: uint32(c.GracefulRestart / time.Second), DeferralTime: deferral, LocalRestarting: true,
		}
	}
	for _, f := range apiFamilies {
		n.AfiSafis = append(n.AfiSafis, &api.AfiSafi{
			Config:            &api.AfiSafiConfig{Family: f, Enabled: true},
			MpGracefulRestart: &api.MpGracefulRestart{Config: &api.MpGracefulRestartConfig{Enabled: restart}},
		})
	}
	return n
}

// path returns a route as GoBGP wants it.
func path(p netip.Prefix, shutdown bool) (*apiutil.Path, error) {
	f := familyOf(p.Addr())
	nlri, err := bgp.NewIPAddrPrefix(p)
	if err != nil {
		return nil, fmt.Errorf("route %v: %w", p, err)
	}
	hop, err := bgp.NewPathAttributeMpReachNLRI(gobgpFamilies[f], []bgp.PathNLRI{{NLRI: nlri}}, placeholders[f])
	if err != nil {
		return nil, fmt.Errorf("route %v: %w", p, err)
	}
	attrs := []bgp.PathAttributeInterface{bgp.NewPathAttributeOrigin(bgp.BGP_ORIGIN_ATTR_TYPE_IGP), hop}
	if shutdown {
		attrs = append(attrs, bgp.NewPathAttributeCommunities([]uint32{uint32(GracefulShutdown)}), bgp.NewPathAttributeLocalPref(0))
	}
	return &apiutil.Path{Family: gobgpFamilies[f], Nlri: nlri, Attrs: attrs}, nil
}

// assignments make GoBGP use the policies: what they do not accept is rejected.
func assignments() []*api.PolicyAssignment {
	of := func(d api.PolicyDirection, policy string) *api.PolicyAssignment {
		return &api.PolicyAssignment{
			Name: ribName, Direction: d, DefaultAction: api.RouteAction_ROUTE_ACTION_REJECT, Policies: []*api.Policy{{Name: policy}},
		}
	}
	return []*api.PolicyAssignment{
		of(api.PolicyDirection_POLICY_DIRECTION_IMPORT, importPolicy), of(api.PolicyDirection_POLICY_DIRECTION_EXPORT, exportPolicy),
	}
}

// policies accept our own routes only, and give each peer its attributes and next hops.
func policies(peers []Peer, hops map[netip.Addr][families]hop) *api.SetPoliciesRequest {
	export := &api.Policy{Name: exportPolicy}
	r := &api.SetPoliciesRequest{
		DefinedSets: []*api.DefinedSet{{
			DefinedType: api.DefinedType_DEFINED_TYPE_COMMUNITY, Name: shutdownSet, List: []string{GracefulShutdown.String()},
		}},
		Policies: []*api.Policy{{Name: importPolicy, Statements: []*api.Statement{{
			Name:       "local",
			Conditions: &api.Conditions{RouteType: api.Conditions_ROUTE_TYPE_LOCAL},
			Actions:    &api.Actions{RouteAction: api.RouteAction_ROUTE_ACTION_ACCEPT},
		}}}, export},
	}
	for i, p := range peers {
		name := "peer" + strconv.Itoa(i)
		r.DefinedSets = append(r.DefinedSets, &api.DefinedSet{
			DefinedType: api.DefinedType_DEFINED_TYPE_NEIGHBOR, Name: name, List: []string{p.Address.String()},
		})
		export.Statements = append(export.Statements, statements(p, name, hops[p.Address])...)
	}
	return r
}

// statements are applied one after the other, until one accepts the route. GoBGP cannot
// set a local preference of 0, which a route with Shutdown brings with it.
func statements(p Peer, name string, hops [families]hop) (list []*api.Statement) {
	add := func(what string, c *api.Conditions, a *api.Actions) {
		c.NeighborSet = &api.MatchSet{Type: api.MatchSet_TYPE_ANY, Name: name}
		list = append(list, &api.Statement{Name: name + what, Conditions: c, Actions: a})
	}
	if len(p.Communities) > 0 {
		community := &api.CommunityAction{Type: api.CommunityAction_TYPE_ADD}
		for _, c := range p.Communities {
			community.Communities = append(community.Communities, c.String())
		}
		add("communities", &api.Conditions{}, &api.Actions{Community: community})
	}
	if p.MED != 0 {
		add("med", &api.Conditions{}, &api.Actions{Med: &api.MedAction{Type: api.MedAction_TYPE_REPLACE, Value: int64(p.MED)}})
	}
	if p.LocalPreference != 0 {
		unlessShutdown := &api.Conditions{CommunitySet: &api.MatchSet{Type: api.MatchSet_TYPE_INVERT, Name: shutdownSet}}
		add("preference", unlessShutdown, &api.Actions{LocalPref: &api.LocalPrefAction{Value: p.LocalPreference}})
	}
	for f, h := range hops {
		if action := h.action(); action != nil {
			family := &api.Conditions{AfiSafiIn: []*api.Family{apiFamilies[f]}, RouteType: api.Conditions_ROUTE_TYPE_LOCAL}
			add(familyNames[f], family, &api.Actions{Nexthop: action, RouteAction: api.RouteAction_ROUTE_ACTION_ACCEPT})
		}
	}
	return list
}

// action sets the next hop; nil: there is none, and the route is rejected.
func (h hop) action() *api.NexthopAction {
	switch {
	case h.self:
		return &api.NexthopAction{Self: true}
	case h.addr.IsValid():
		return &api.NexthopAction{Address: h.addr.String()}
	}
	return nil
}
