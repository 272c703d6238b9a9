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
func Read(in reader.Input) (*reader.Result, error) {
	k := keepalived{Result: reader.NewResult(in), groups: map[string]*node{}, used: map[string]bool{}}
	if err := readTree(in, k.Result, k.statement); err != nil {
		return nil, err
	}
	for _, n := range k.later {
		if err := k.virtualServer(n); err != nil {
			return nil, err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(k.groups)) {
		if !k.used[name] {
			k.Note(k.groups[name].at, "virtual_server_group "+source.Excerpt(name)+" is left out: no virtual server has it", "")
		}
	}
	k.KeepsClients(in.Name)
	return k.Result, nil
}

type keepalived struct {
	*reader.Result
	groups map[string]*node
	used   map[string]bool // groups
	later  []*node         // virtual servers from the first one of a group on, which may follow it
}

// byVRRP are statements about addresses that move between hosts.
var byVRRP = []string{"vrrp_instance", "vrrp_sync_group", "vrrp_script", "vrrp_track_process", "vrrp_track_file", "track_file", "track_process", "bfd_instance",
	"static_ipaddress", "static_routes", "static_rules", "static_track_group", "linkbeat_interfaces", "garp_group", "interface_up_down_delays"}

// statement reads a statement that is in no block. Only what is too much ends the reading.
func (k *keepalived) statement(n *node) error {
	switch {
	case n.key() == "virtual_server_group":
		k.groups[n.Arg(1)] = n
	case n.key() == "virtual_server" && (n.Arg(1) == "group" || k.later != nil):
		k.later = append(k.later, n)
	case n.key() == "virtual_server":
		return k.virtualServer(n)
	case n.key() == "global_defs":
		k.global(n)
	case slices.Contains(byVRRP, n.key()):
		k.Note(n.at, strings.TrimSpace(n.key()+" "+n.Arg(1))+" is left out: it is no service", "keep it in keepalived, which works beside svcproxy: see docs/many-hosts.md")
	case n.key() == "SSL":
		k.Note(n.at, "the certificate of SSL is left out", "health checks show none; use type = \"exec\" where a server asks for one")
	case n.block:
		k.Note(n.at, source.Excerpt(n.key())+" is left out: it is no service", "")
	}
	return nil
}

// global notes the global settings that IPVS has.
func (k *keepalived) global(n *node) {
	for _, s := range n.sub {
		switch s.key() {
		case "lvs_timeouts":
			k.Note(s.at, "lvs_timeouts is left out", "set tcp_timeout, tcp_fin_timeout and udp_timeout in [ipvs] of svcproxy.toml")
		case "lvs_sync_daemon":
			k.Note(s.at, "lvs_sync_daemon is left out: connections are not copied to another host", `with scheduler = "maglev" every host chooses the same endpoint: see docs/maglev.md`)
		case "lvs_flush", "lvs_flush_on_stop":
			k.Note(s.at, s.key()+" is left out: what others have in IPVS is not touched", "svcproxy cleanup removes what is ours")
		case "net_namespace", "net_namespace_ipvs":
			k.Note(s.at, s.key()+" is left out", "run svcproxy in that namespace, with directories of its own")
		case "script_user":
			k.Note(s.at, "script_user is left out: checks of type exec run as the user of svcproxy", "set exec_user in [health] of svcproxy.toml")
		}
	}
}

// VirtualServer reads a virtual server, which a group may make several services of.
func (k *keepalived) virtualServer(n *node) error {
	leave := func(why string) { k.Note(n.at, source.Excerpt(strings.Join(n.Words, " "))+" is left out: "+why, "") }
	if n.last("real_server") == nil {
		leave("it has no real server, so keepalived does not use it")
		return nil
	}
	groups, name, err := k.frontends(n)
	if err == reader.ErrGrown {
		return reader.ErrorAt(n.at, "%s", err)
	}
	if err != nil {
		leave(err.Error())
		return nil
	}
	if err := k.Grow((len(groups) - 1) * n.size()); err != nil {
		return reader.ErrorAt(n.at, "%s", err)
	}
	for _, g := range groups {
		label := name
		v := k.settings(n)
		v.Addrs, v.Port = g.addrs, g.port
		if v.Protocol == 0 {
			leave("its protocol is none of TCP, UDP and SCTP")
			return nil
		}
		switch {
		case name == "":
			label = reader.FrontendName(g.addrs[0], g.port, v.Protocol)
		case len(groups) > 1:
			label = fmt.Sprintf("%s-%d", name, g.port)
		}
		k.serve(n, &v, label)
	}
	return nil
}

// frontends returns what clients reach a virtual server by, and the name of its group.
func (k *keepalived) frontends(n *node) (groups []portGroup, name string, err error) {
	switch n.Arg(1) {
	case "group":
		group := k.groups[n.Arg(2)]
		k.used[n.Arg(2)] = true
		if group == nil {
			return nil, "", fmt.Errorf("there is no virtual_server_group %s", source.Excerpt(n.Arg(2)))
		}
		groups, err = k.group(group)
		if err == nil && len(groups) == 0 {
			err = fmt.Errorf("the group %s has no address with a port", source.Excerpt(n.Arg(2)))
		}
		return groups, n.Arg(2), err
	case "fwmark":
		return nil, "", fmt.Errorf("no service is chosen by a mark; write one with the addresses and ports that are marked")
	}
	a, err := netip.ParseAddr(n.Arg(1))
	if n.Arg(1) == "" {
		return nil, "", fmt.Errorf("no address is written")
	}
	if err != nil {
		return nil, "", fmt.Errorf("%s is no address", source.Excerpt(n.Arg(1)))
	}
	port, err := reader.PortOf(n.Arg(2))
	if err == nil && port == 0 {
		err = fmt.Errorf("it is of all ports of %s; write a service with the ports that are used", a)
	}
	return []portGroup{{port, []netip.Addr{a}}}, "", err
}

// group returns the addresses of a group by their port, in the order in which ports are written.
func (k *keepalived) group(n *node) (groups []portGroup, err error) {
	of := map[uint16]int{}
	for _, s := range n.sub {
		if s.key() == "fwmark" {
			k.Note(s.at, "fwmark "+source.Excerpt(s.Arg(1))+" of the group "+source.Excerpt(n.Arg(1))+" is left out: no service is chosen by a mark", "add the addresses and ports that are marked")
			continue
		}
		addrs, err := k.AddrRange(s.key())
		if err == reader.ErrGrown {
			return nil, err
		}
		port, portErr := reader.PortOf(s.Arg(1))
		err = cmp.Or(err, portErr)
		if err == nil && port == 0 {
			err = fmt.Errorf("it is of all ports")
		}
		if err != nil {
			k.Note(s.at, source.Excerpt(s.key())+" of the group is left out: "+err.Error(), "")
			continue
		}
		i, known := of[port]
		if !known {
			i, groups = len(groups), append(groups, portGroup{port: port})
			of[port] = i
		}
		groups[i].addrs = append(groups[i].addrs, addrs...)
	}
	return groups, nil
}

// standardPersistence is how long keepalived keeps clients on their real server where no time is written.
const standardPersistence = 360 * time.Second

// number reads the number of a statement. A note says where it is none.
func (n *node) number(note func(at reader.Position, msg, hint string)) (int, bool) {
	number, err := strconv.ParseUint(n.Arg(1), 10, 31)
	if err != nil {
		note(n.at, n.key()+" "+source.Excerpt(n.Arg(1))+" is left out: it is no number", "")
	}
	return int(number), err == nil
}

// settings reads what a virtual server is without its real servers.
func (k *keepalived) settings(n *node) ipvs.VirtualServer {
	v := ipvs.VirtualServer{At: n.at, Protocol: source.UDP, Scheduler: "wlc", Weight: 1} // of keepalived, where nothing is written
	for _, s := range n.sub {
		switch s.key() {
		case "protocol":
			v.Protocol = reader.Protocols[strings.ToLower(s.Arg(1))]
		case "lvs_sched", "lb_algo":
			v.Scheduler = s.Arg(1)
		case "persistence_timeout":
			v.Persistence = standardPersistence
			if s.Arg(1) == "" {
				continue
			}
			if seconds, ok := s.number(k.Note); ok {
				v.Persistence = time.Duration(seconds) * time.Second
			}
		case "persistence_granularity":
			v.Granularity, v.MaskedAt = source.Excerpt(s.Arg(1)), s.at
		case "weight": // of real servers that have none
			if weight, ok := s.number(k.Note); ok {
				v.Weight = weight
			}
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

// serve adds a virtual server with its real servers, in a mode and with checks as near as can be.
func (k *keepalived) serve(n *node, v *ipvs.VirtualServer, name string) {
	way, wayNotes := wayOf(n, "lvs_method", "lb_kind")
	var reals, sorry []*node
	for _, s := range n.sub {
		switch s.key() {
		case "real_server":
			reals = append(reals, s)
		case "sorry_server":
			sorry = append(sorry, s)
		}
	}
	notes := wayNotes
	for _, s := range reals {
		own, ownNotes := wayOf(s, "lvs_method", "lb_kind")
		notes = append(append(notes, ownNotes...), realServer(v, s, cmp.Or(own, way), 0)...)
	}
	for _, s := range sorry[min(1, len(sorry)):] {
		notes = append(notes, reader.Note{At: s.at, Msg: "sorry_server " + source.Excerpt(s.Arg(1)) + " is left out: a virtual server has one", Hint: "write it as an endpoint with tier = 2"})
	}
	if len(sorry) > 0 {
		own, ownNotes := wayOf(n, "sorry_server_lvs_method")
		notes = append(append(notes, ownNotes...), realServer(v, sorry[0], cmp.Or(own, way), 1)...)
	}
	s := ipvs.AddServer(k.Result, v, name)
	if n.last("protocol") == nil {
		s.Note(n.at, "no protocol is written, which keepalived takes for UDP", `write protocol = "tcp" if it was meant`)
	}
	for _, note := range notes {
		s.Note(note.At, note.Msg, note.Hint)
	}
	addChecks(s, n, reals, len(sorry) > 0)
	quorum(s, n, v, len(sorry) > 0)
	leftOut(s, n, reals)
}

// wayOf returns how packets get to real servers by a statement of a block; nil: it says nothing.
func wayOf(n *node, keys ...string) (*source.Forwarding, []reader.Note) {
	i := slices.IndexFunc(n.sub, func(s *node) bool { return slices.Contains(keys, s.key()) })
	if i < 0 {
		return nil, nil
	}
	s := n.sub[i]
	switch s.Arg(1) {
	case "NAT":
		return &source.Forwarding{}, nil
	case "DR":
		return &source.Forwarding{Method: source.ForwardDirect}, nil
	case "TUN":
		return tunnelWay(s)
	}
	return nil, []reader.Note{{At: s.at, Msg: source.Excerpt(strings.Join(s.Words, " ")) + " is left out", Hint: "want NAT, DR or TUN"}}
}

// tunnelWay reads TUN [type KIND [port NUMBER] [CHECKSUM]].
func tunnelWay(s *node) (way *source.Forwarding, notes []reader.Note) {
	kind, port := "", ""
	for i, w := range s.Words {
		switch w {
		case "type":
			kind = s.Arg(i + 1)
		case "port":
			port = s.Arg(i + 1)
		case "csum", "remcsum":
			notes = append(notes, reader.Note{At: s.at, Msg: w + " of the tunnel is left out", Hint: "tunnels have the checksums that IPVS gives them by itself"})
		}
	}
	f, err := ipvs.TunnelOf(kind, port)
	if err != nil {
		notes = append(notes, reader.Note{At: s.at, Msg: err.Error(), Hint: "want ipip, gue or gre"})
	}
	return &f, notes
}

// realServer adds a real server, or a sorry server, as a destination, or notes why it cannot.
func realServer(v *ipvs.VirtualServer, n *node, way *source.Forwarding, tier uint8) (notes []reader.Note) {
	d := ipvs.Destination{At: n.at, Weight: 1, Tier: tier}
	if tier == 0 {
		d.Weight = v.Weight
	}
	if way != nil {
		d.Way = *way
	}
	a, err := netip.ParseAddr(n.Arg(1))
	port, portErr := reader.PortOf(n.Arg(2))
	if err != nil || portErr != nil {
		return []reader.Note{{At: n.at, Msg: fmt.Sprintf("%s %s is left out: want an address and a port", n.key(), source.Excerpt(strings.Join(n.Words[1:], " ")))}}
	}
	d.Addr = netip.AddrPortFrom(a, port)
	weight, upper, lower := d.Weight, 0, 0
	for _, s := range n.sub {
		var to *int
		switch s.key() {
		case "weight":
			to = &weight
		case "uthreshold":
			to = &upper
		case "lthreshold":
			to = &lower
		default:
			continue
		}
		if number, ok := s.number(func(at reader.Position, msg, hint string) {
			notes = append(notes, reader.Note{At: at, Msg: msg, Hint: hint})
		}); ok {
			*to = number
		}
	}
	d.Weight, d.Upper, d.Lower = weight, uint32(upper), uint32(lower)
	v.Dests = append(v.Dests, d)
	return notes
}

// quorum takes the quorum over where endpoints weigh the same: they are counted, not weighed.
func quorum(s *reader.Service, n *node, v *ipvs.VirtualServer, hasSorry bool) {
	i := slices.IndexFunc(n.sub, func(s *node) bool { return s.key() == "quorum" })
	if i < 0 {
		return
	}
	at := n.sub[i].at
	want, _ := n.sub[i].number(s.Note)
	weights := map[int]bool{}
	weight := 1
	for _, d := range v.Dests {
		if d.Tier == 0 {
			weight = d.Weight
			weights[d.Weight] = true
		}
	}
	switch {
	case want <= 1:
	case !hasSorry:
		s.Note(at, "quorum is left out: there is no sorry_server to change to", "svcproxy status --check "+s.Name+" tells scripts whether the service works")
	case len(weights) != 1 || weight == 0:
		s.Note(at, "quorum is left out: the weights of real servers differ, and min_up counts endpoints", "write min_up = the number of endpoints without which the sorry server is used")
	default:
		s.MinUp = uint16(min(65535, len(v.Dests)-1, (want+weight-1)/weight)) // without the sorry server
		s.Note(at, fmt.Sprintf("below min_up = %d the sorry server is used beside the endpoints that are left, not in their place", s.MinUp), "")
	}
}

// A portGroup is addresses that have one port.
type portGroup struct {
	port  uint16
	addrs []netip.Addr
}
