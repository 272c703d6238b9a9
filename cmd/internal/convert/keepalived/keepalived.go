package keepalived

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"svcproxy.dev/svcproxy/cmd/internal/convert/ipvs"
	"svcproxy.dev/svcproxy/cmd/internal/convert/reader"
	"svcproxy.dev/svcproxy/source"
)

// Read reads keepalived.conf(5), as far as it is about virtual servers.
func Read(in reader.Input) *reader.Result {
	k := keepalived{Result: reader.NewResult(in), groups: map[string]*node{}, used: map[string]bool{}}
	parse(in, k.Result, k.statement)
	for _, n := range k.later {
		k.virtualServer(n)
	}
	for _, name := range slices.Sorted(maps.Keys(k.groups)) {
		if !k.used[name] {
			k.Note(k.groups[name].At, "virtual_server_group "+source.Excerpt(name)+" is left out: no virtual server has it", "")
		}
	}
	k.KeepsClients(in.Name)
	return k.Result
}

type keepalived struct {
	*reader.Result
	groups map[string]*node
	used   map[string]bool // groups
	later  []*node         // virtual servers from the first one of a group on, which may follow it
}

// byVRRP are statements about addresses that move between hosts.
var byVRRP = reader.WordSet(`vrrp_instance vrrp_sync_group vrrp_script vrrp_track_process vrrp_track_file track_file track_process bfd_instance
	static_ipaddress static_routes static_rules static_track_group linkbeat_interfaces garp_group interface_up_down_delays`)

// globals are the global settings that IPVS has: why they are left out, and what to do.
var globals = map[string]reader.Left{
	"lvs_timeouts":       {Hint: "set tcp_timeout, tcp_fin_timeout and udp_timeout in [ipvs] of svcproxy.toml"},
	"lvs_sync_daemon":    {Why: "connections are not copied to another host", Hint: `with scheduler = "maglev" every host chooses the same endpoint: see docs/maglev.md`},
	"lvs_flush":          {Why: "what others have in IPVS is not touched", Hint: "svcproxy cleanup removes what is ours"},
	"lvs_flush_on_stop":  {Why: "what others have in IPVS is not touched", Hint: "svcproxy cleanup removes what is ours"},
	"net_namespace":      {Hint: "run svcproxy in that namespace, with directories of its own"},
	"net_namespace_ipvs": {Hint: "run svcproxy in that namespace, with directories of its own"},
	"script_user":        {Why: "checks of type exec run as the user of svcproxy", Hint: "set exec_user in [health] of svcproxy.toml"},
}

// statement reads a statement that is in no block.
func (k *keepalived) statement(n *node) {
	switch {
	case n.key() == "virtual_server_group" && k.groups[n.Arg(1)] != nil:
		k.Note(n.At, n.Text(0)+" is left out: the first group of that name counts", "")
	case n.key() == "virtual_server_group":
		k.groups[n.Arg(1)] = n
	case n.key() == "virtual_server" && (n.Arg(1) == "group" || k.later != nil):
		k.later = append(k.later, n)
	case n.key() == "virtual_server":
		k.virtualServer(n)
	case n.key() == "global_defs":
		for _, s := range n.sub {
			if left, known := globals[s.key()]; known {
				k.Note(s.At, left.Of(s.key()), left.Hint)
			}
		}
	case byVRRP[n.key()]:
		k.Note(n.At, strings.TrimSpace(n.key()+" "+n.Arg(1))+" is left out: it is no service", "keep it in keepalived, which works beside svcproxy: see docs/many-hosts.md")
	case n.key() == "SSL":
		k.Note(n.At, "the certificate of SSL is left out", "health checks show none; use type = \"exec\" where a server asks for one")
	default:
		k.Note(n.At, source.Excerpt(n.key())+" is left out: it is no service", "")
	}
}

// virtualServer reads a virtual server, which a group may make several services of.
func (k *keepalived) virtualServer(n *node) {
	leave := func(why string) { k.Note(n.At, n.Text(0)+" is left out: "+why, "") }
	if n.last("real_server") == nil {
		leave("it has no real server, so keepalived does not use it")
		return
	}
	k.At = n.At
	groups, name, err := k.frontends(n)
	if err != nil {
		leave(err.Error())
		return
	}
	k.Grow((len(groups) - 1) * n.size())
	for _, g := range groups {
		v := k.settings(n)
		if v.Addrs, v.Port = g.Addrs, g.Port; v.Protocol == 0 {
			leave("its protocol is none of TCP, UDP and SCTP")
			return
		}
		label := cmp.Or(name, reader.FrontendName(g.Addrs[0], g.Port, v.Protocol))
		if name != "" && len(groups) > 1 {
			label = fmt.Sprintf("%s-%d", name, g.Port)
		}
		serve(k.Add(n.At, "default", label), n, &v)
	}
}

// frontends returns what clients reach a virtual server by: addresses with a port each, and the name of its group.
func (k *keepalived) frontends(n *node) (groups []ipvs.VirtualServer, name string, err error) {
	if name = n.Arg(2); n.Arg(1) == "group" {
		k.used[name] = true
		if k.groups[name] == nil {
			return nil, "", fmt.Errorf("there is no virtual_server_group %s", source.Excerpt(name))
		}
		if groups = k.group(k.groups[name]); groups == nil {
			return nil, "", fmt.Errorf("the group %s has no address with a port", source.Excerpt(name))
		}
		return groups, name, nil
	}
	a, err := netip.ParseAddr(n.Arg(1))
	switch {
	case n.Arg(1) == "fwmark":
		return nil, "", fmt.Errorf("no service is chosen by a mark; write one with the addresses and ports that are marked")
	case n.Arg(1) == "":
		return nil, "", fmt.Errorf("no address is written")
	case err != nil:
		return nil, "", fmt.Errorf("%s is no address", source.Excerpt(n.Arg(1)))
	}
	port, err := reader.PortOf(n.Arg(2))
	if err == nil && port == 0 {
		err = fmt.Errorf("it is of all ports of %s; write a service with the ports that are used", a)
	}
	return []ipvs.VirtualServer{{Port: port, Addrs: []netip.Addr{a}}}, "", err
}

// group returns the addresses of a group by their port, in the order in which ports are written.
func (k *keepalived) group(n *node) (groups []ipvs.VirtualServer) {
	of := map[uint16]int{}
	for _, s := range n.sub {
		if s.key() == "fwmark" {
			k.Note(s.At, "fwmark "+source.Excerpt(s.Arg(1))+" of the group "+source.Excerpt(n.Arg(1))+" is left out: no service is chosen by a mark", "add the addresses and ports that are marked")
			continue
		}
		addrs, err := k.AddrRange(s.key())
		port, portErr := reader.PortOf(s.Arg(1))
		if err = cmp.Or(err, portErr); err == nil && port == 0 {
			err = fmt.Errorf("it is of all ports")
		}
		if err != nil {
			k.Note(s.At, source.Excerpt(s.key())+" of the group is left out: "+err.Error(), "")
			continue
		}
		i, known := of[port]
		if !known {
			i, groups = len(groups), append(groups, ipvs.VirtualServer{Port: port})
			of[port] = i
		}
		groups[i].Addrs = append(groups[i].Addrs, addrs...)
	}
	return groups
}

// standardPersistence is how long keepalived keeps clients on their real server where no time is written.
const standardPersistence = 360 * time.Second

// number sets the number of a statement. A note says where it is none.
func (n *node) number(note func(at reader.Position, msg, hint string), to *int) {
	number, err := strconv.ParseUint(n.Arg(1), 10, 31)
	if err != nil {
		note(n.At, n.key()+" "+source.Excerpt(n.Arg(1))+" is left out: it is no number", "")
		return
	}
	*to = int(number)
}

// settings reads what a virtual server is without its real servers.
func (k *keepalived) settings(n *node) ipvs.VirtualServer {
	v := ipvs.VirtualServer{At: n.At, Protocol: source.UDP, Scheduler: "wlc", Weight: 1} // of keepalived, where nothing is written
	for _, s := range n.sub {
		switch s.key() {
		case "protocol":
			v.Protocol = reader.Protocols[strings.ToLower(s.Arg(1))]
		case "lvs_sched", "lb_algo":
			v.Scheduler = s.Arg(1)
		case "persistence_timeout":
			seconds := int(standardPersistence / time.Second)
			if s.Arg(1) != "" {
				s.number(k.Note, &seconds)
			}
			v.Persistence = time.Duration(seconds) * time.Second
		case "persistence_granularity":
			v.Granularity, v.MaskedAt = source.Excerpt(s.Arg(1)), s.At
		case "weight": // of real servers that have none
			s.number(k.Note, &v.Weight)
		case "ops":
			v.OnePacket = true
		case "flag-1", "flag-2", "flag-3", "sh-port", "sh-fallback", "mh-port", "mh-fallback":
			v.Flags = append(v.Flags, s.key())
		}
	}
	if v.Granularity != "" && v.Persistence == 0 {
		v.Persistence = standardPersistence // which the mask alone switches on
	}
	return v
}

// serve fills the service of a virtual server in with its real servers, in a mode and with checks as near as can be.
func serve(s *reader.Service, n *node, v *ipvs.VirtualServer) {
	way := wayOf(s, n, source.Forwarding{}, "lvs_method", "lb_kind")
	var reals, sorry []*node
	for _, sub := range n.sub {
		switch sub.key() {
		case "real_server":
			reals = append(reals, sub)
			realServer(s, v, sub, ipvs.Destination{Weight: v.Weight, Way: wayOf(s, sub, way, "lvs_method", "lb_kind")})
		case "sorry_server":
			sorry = append(sorry, sub)
		}
	}
	for i, sub := range sorry {
		if i > 0 {
			s.Note(sub.At, "sorry_server "+source.Excerpt(sub.Arg(1))+" is left out: a virtual server has one", "write it as an endpoint with tier = 2")
			continue
		}
		realServer(s, v, sub, ipvs.Destination{Weight: 1, Way: wayOf(s, n, way, "sorry_server_lvs_method"), Tier: 1})
	}
	v.Serve(s)
	if n.last("protocol") == nil {
		s.Note(n.At, "no protocol is written, which keepalived takes for UDP", `write protocol = "tcp" if it was meant`)
	}
	addChecks(s, n, reals, len(sorry) > 0)
	quorum(s, n, v, len(sorry) > 0)
	leftOut(s, n, reals)
}

// wayOf returns how packets get to real servers by a statement of a block, else as by one before it.
func wayOf(s *reader.Service, in *node, before source.Forwarding, keys ...string) source.Forwarding {
	n := in.last(keys...)
	if n == nil {
		return before
	}
	switch n.Arg(1) {
	case "NAT":
		return source.Forwarding{}
	case "DR":
		return source.Forwarding{Method: source.ForwardDirect}
	case "TUN": // [type KIND [port NUMBER] [CHECKSUM]]
		args := map[string]string{}
		for i, w := range n.Words {
			if args[w] = n.Arg(i + 1); w == "csum" || w == "remcsum" {
				s.Note(n.At, w+" of the tunnel is left out", "tunnels have the checksums that IPVS gives them by itself")
			}
		}
		way, err := ipvs.TunnelOf(args["type"], args["port"])
		if err != nil {
			s.Note(n.At, err.Error(), "want ipip, gue or gre")
		}
		return way
	}
	s.Note(n.At, n.Text(0)+" is left out", "want NAT, DR or TUN")
	return before
}

// realServer adds a real server, or a sorry server, as a destination, or notes why it cannot.
func realServer(s *reader.Service, v *ipvs.VirtualServer, n *node, d ipvs.Destination) {
	a, err := netip.ParseAddr(n.Arg(1))
	port, portErr := reader.PortOf(n.Arg(2))
	if err != nil || portErr != nil {
		s.Note(n.At, n.key()+" "+n.Text(1)+" is left out: want an address and a port", "")
		return
	}
	d.At, d.Addr = n.At, netip.AddrPortFrom(a, port)
	for _, sub := range n.sub {
		switch sub.key() {
		case "weight":
			sub.number(s.Note, &d.Weight)
		case "uthreshold":
			sub.number(s.Note, &d.Upper)
		case "lthreshold":
			sub.number(s.Note, &d.Lower)
		}
	}
	v.Dests = append(v.Dests, d)
}

// quorum takes the quorum over where endpoints weigh the same: they are counted, not weighed.
func quorum(s *reader.Service, n *node, v *ipvs.VirtualServer, hasSorry bool) {
	q := n.last("quorum")
	if q == nil {
		return
	}
	at, want := q.At, 0
	q.number(s.Note, &want)
	same, weight := true, -1
	for _, d := range v.Dests {
		if d.Tier == 0 {
			same = same && (weight < 0 || weight == d.Weight)
			weight = d.Weight
		}
	}
	switch {
	case want <= 1:
	case !hasSorry:
		s.Note(at, "quorum is left out: there is no sorry_server to change to", "svcproxy status --check "+s.Name+" tells scripts whether the service works")
	case !same || weight <= 0:
		s.Note(at, "quorum is left out: the weights of real servers differ, and min_up counts endpoints", "write min_up = the number of endpoints without which the sorry server is used")
	default:
		s.MinUp = uint16(min(65535, len(v.Dests)-1, (want+weight-1)/weight)) // without the sorry server
		s.Note(at, fmt.Sprintf("below min_up = %d the sorry server is used beside the endpoints that are left, not in their place", s.MinUp), "")
	}
}
