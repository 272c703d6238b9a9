package convert

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"svcproxy.dev/svcproxy/source"
)

// readKeepalived reads keepalived.conf(5), as far as it is about virtual servers.
func readKeepalived(in Input) (*Result, error) {
	k := keepalived{Result: &Result{}, groups: map[string]*node{}}
	root, err := readTree(in, k.Result)
	if err != nil {
		return nil, err
	}
	for _, n := range root.sub {
		if n.key() == "virtual_server_group" {
			k.groups[n.arg(1)] = n
		}
	}
	for _, n := range root.sub {
		if err := k.statement(n); err != nil {
			return nil, err
		}
	}
	k.keepsClients(in.Name)
	return k.Result, nil
}

type keepalived struct {
	*Result
	groups map[string]*node
}

// byVRRP are statements about addresses that move between hosts.
var byVRRP = []string{"vrrp_instance", "vrrp_sync_group", "vrrp_script", "vrrp_track_process", "vrrp_track_file", "track_file", "track_process", "bfd_instance",
	"static_ipaddress", "static_routes", "static_rules", "static_track_group", "linkbeat_interfaces", "garp_group", "interface_up_down_delays"}

// statement reads a statement that is in no block. Only what is too much ends the reading.
func (k *keepalived) statement(n *node) error {
	switch {
	case n.key() == "virtual_server_group":
	case n.key() == "virtual_server":
		return k.virtualServer(n)
	case n.key() == "global_defs":
		k.global(n)
	case slices.Contains(byVRRP, n.key()):
		k.note(n.at, strings.TrimSpace(n.key()+" "+n.arg(1))+" is left out: it is no service", "keep it in keepalived, which works beside svcproxy: see docs/many-hosts.md")
	case n.key() == "SSL":
		k.note(n.at, "the certificate of SSL is left out", "health checks show none; use type = \"exec\" where a server asks for one")
	case n.block:
		k.note(n.at, source.Excerpt(n.key())+" is left out: it is no service", "")
	}
	return nil
}

// global notes the global settings that IPVS has.
func (k *keepalived) global(n *node) {
	for _, s := range n.sub {
		switch s.key() {
		case "lvs_timeouts":
			k.note(s.at, "lvs_timeouts is left out", "set tcp_timeout, tcp_fin_timeout and udp_timeout in [ipvs] of svcproxy.toml")
		case "lvs_sync_daemon":
			k.note(s.at, "lvs_sync_daemon is left out: connections are not copied to another host", `with scheduler = "maglev" every host chooses the same endpoint: see docs/maglev.md`)
		case "lvs_flush", "lvs_flush_on_stop":
			k.note(s.at, s.key()+" is left out: what others have in IPVS is not touched", "svcproxy cleanup removes what is ours")
		case "net_namespace", "net_namespace_ipvs":
			k.note(s.at, s.key()+" is left out", "run svcproxy in that namespace, with directories of its own")
		}
	}
}

// virtualServer reads a virtual server, which a group may make several services of.
func (k *keepalived) virtualServer(n *node) error {
	if n.last("real_server") == nil {
		k.note(n.at, "the virtual server is left out: it has no real server, so keepalived does not use it", "")
		return nil
	}
	groups, name, err := k.frontends(n)
	if err == errGrown {
		return errorAt(n.at, "%s", err)
	}
	if err != nil {
		k.note(n.at, "the virtual server is left out: "+err.Error(), "")
		return nil
	}
	if err := k.grow((len(groups) - 1) * n.size()); err != nil {
		return errorAt(n.at, "%s", err)
	}
	for _, g := range groups {
		label := name
		v := k.settings(n)
		v.addrs, v.port = g.addrs, g.port
		if v.protocol == 0 {
			k.note(n.at, "the virtual server is left out: its protocol is none of TCP, UDP and SCTP", "")
			return nil
		}
		switch {
		case name == "":
			label = frontendName(g.addrs[0], g.port, v.protocol)
		case len(groups) > 1:
			label = fmt.Sprintf("%s-%d", name, g.port)
		}
		k.serve(n, &v, label)
	}
	return nil
}

// frontends returns what clients reach a virtual server by, and the name of its group.
func (k *keepalived) frontends(n *node) (groups []portGroup, name string, err error) {
	switch n.arg(1) {
	case "group":
		group := k.groups[n.arg(2)]
		if group == nil {
			return nil, "", fmt.Errorf("there is no virtual_server_group %s", source.Excerpt(n.arg(2)))
		}
		groups, err = k.group(group)
		if err == nil && len(groups) == 0 {
			err = fmt.Errorf("the group %s has no address with a port", source.Excerpt(n.arg(2)))
		}
		return groups, n.arg(2), err
	case "fwmark":
		return nil, "", fmt.Errorf("firewall mark %s chooses no service; write one with the addresses and ports that are marked", source.Excerpt(n.arg(2)))
	}
	a, err := netip.ParseAddr(n.arg(1))
	if err != nil {
		return nil, "", fmt.Errorf("%s is no address", source.Excerpt(n.arg(1)))
	}
	port, err := portOf(n.arg(2))
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
			k.note(s.at, "fwmark "+source.Excerpt(s.arg(1))+" of the group "+source.Excerpt(n.arg(1))+" is left out: no service is chosen by a mark", "add the addresses and ports that are marked")
			continue
		}
		addrs, err := k.addrRange(s.key())
		if err == errGrown {
			return nil, err
		}
		port, portErr := portOf(s.arg(1))
		err = cmp.Or(err, portErr)
		if err == nil && port == 0 {
			err = fmt.Errorf("it is of all ports")
		}
		if err != nil {
			k.note(s.at, source.Excerpt(s.key())+" of the group is left out: "+err.Error(), "")
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

// settings reads what a virtual server is without its real servers.
func (k *keepalived) settings(n *node) virtualServer {
	v := virtualServer{at: n.at, protocol: source.UDP, scheduler: "wlc", weight: 1} // of keepalived, where nothing is written
	for _, s := range n.sub {
		switch s.key() {
		case "protocol":
			v.protocol = protocols[strings.ToLower(s.arg(1))]
		case "lvs_sched", "lb_algo":
			v.scheduler = s.arg(1)
		case "persistence_timeout":
			v.persistence = standardPersistence
			if seconds, err := strconv.ParseUint(s.arg(1), 10, 31); err == nil {
				v.persistence = time.Duration(seconds) * time.Second
			}
		case "persistence_granularity":
			v.granularity = source.Excerpt(s.arg(1))
		case "weight": // of real servers that have none
			if weight, err := strconv.ParseUint(s.arg(1), 10, 31); err == nil {
				v.weight = int(weight)
			}
		case "ops":
			v.onePacket = true
		case "flag-1", "flag-2", "flag-3", "sh-port", "sh-fallback", "mh-port", "mh-fallback":
			v.flags = append(v.flags, s.key())
		}
	}
	if v.granularity != "" && v.persistence == 0 {
		v.persistence = standardPersistence // which the mask alone switches on
	}
	return v
}

// serve adds a virtual server with its real servers, in a mode and with checks as near as can be.
func (k *keepalived) serve(n *node, v *virtualServer, name string) {
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
	notes := Result{Notes: wayNotes}
	for _, s := range reals {
		own, ownNotes := wayOf(s, "lvs_method", "lb_kind")
		notes.Notes = append(notes.Notes, ownNotes...)
		notes.realServer(v, s, cmp.Or(own, way), 0)
	}
	if len(sorry) > 0 {
		own, ownNotes := wayOf(n, "sorry_server_lvs_method")
		notes.Notes = append(notes.Notes, ownNotes...)
		notes.realServer(v, sorry[0], cmp.Or(own, way), 1)
	}
	s := k.addServer(v, name)
	if n.last("protocol") == nil {
		s.note(n.at, "no protocol is written, which keepalived takes for UDP", `write protocol = "tcp" if it was meant`)
	}
	for _, note := range notes.Notes {
		s.note(note.at, note.msg, note.hint)
	}
	s.keepalivedChecks(n, reals, len(sorry) > 0)
	s.quorum(n, v, len(sorry) > 0)
	s.leftOut(n, reals)
}

// wayOf returns how packets get to real servers by a statement of a block; nil: it says nothing.
func wayOf(n *node, keys ...string) (*source.Forwarding, []Note) {
	i := slices.IndexFunc(n.sub, func(s *node) bool { return slices.Contains(keys, s.key()) })
	if i < 0 {
		return nil, nil
	}
	s := n.sub[i]
	switch s.arg(1) {
	case "NAT":
		return &source.Forwarding{}, nil
	case "DR":
		return &source.Forwarding{Method: source.ForwardDirect}, nil
	case "TUN":
		return tunnelWay(s)
	}
	return nil, []Note{{s.at, source.Excerpt(strings.Join(s.words, " ")) + " is left out", "want NAT, DR or TUN"}}
}

// tunnelWay reads TUN [type KIND [port NUMBER] [CHECKSUM]].
func tunnelWay(s *node) (way *source.Forwarding, notes []Note) {
	kind, port := "", ""
	for i, w := range s.words {
		switch w {
		case "type":
			kind = s.arg(i + 1)
		case "port":
			port = s.arg(i + 1)
		case "csum", "remcsum":
			notes = append(notes, Note{s.at, w + " of the tunnel is left out", "tunnels have the checksums that IPVS gives them by itself"})
		}
	}
	f, err := tunnelOf(kind, port)
	if err != nil {
		notes = append(notes, Note{s.at, err.Error(), "want ipip, gue or gre"})
	}
	return &f, notes
}

// realServer adds a real server, or a sorry server, as a destination.
func (r *Result) realServer(v *virtualServer, n *node, way *source.Forwarding, tier uint8) {
	d := destination{at: n.at, weight: 1, tier: tier}
	if tier == 0 {
		d.weight = v.weight
	}
	if way != nil {
		d.way = *way
	}
	a, err := netip.ParseAddr(n.arg(1))
	port, portErr := portOf(n.arg(2))
	if err != nil || portErr != nil {
		r.note(n.at, fmt.Sprintf("%s %s is left out: want an address and a port", n.key(), source.Excerpt(strings.Join(n.words[1:], " "))), "")
		return
	}
	d.addr = netip.AddrPortFrom(a, port)
	for _, s := range n.sub {
		number, err := strconv.ParseUint(s.arg(1), 10, 31)
		if err != nil {
			continue
		}
		switch s.key() {
		case "weight":
			d.weight = int(number)
		case "uthreshold":
			d.upper = uint32(number)
		case "lthreshold":
			d.lower = uint32(number)
		}
	}
	v.dests = append(v.dests, d)
}

// quorum takes the quorum over where endpoints weigh the same: they are counted, not weighed.
func (s *Service) quorum(n *node, v *virtualServer, hasSorry bool) {
	i := slices.IndexFunc(n.sub, func(s *node) bool { return s.key() == "quorum" })
	if i < 0 {
		return
	}
	at := n.sub[i].at
	want, err := strconv.ParseUint(n.sub[i].arg(1), 10, 31)
	weights := map[int]bool{}
	weight := 1
	for _, d := range v.dests {
		if d.tier == 0 {
			weight = d.weight
			weights[d.weight] = true
		}
	}
	switch {
	case err != nil || want <= 1:
	case !hasSorry:
		s.note(at, "quorum is left out: there is no sorry_server to change to", "svcproxy status --check "+s.Name+" tells scripts whether the service works")
	case len(weights) != 1 || weight == 0:
		s.note(at, "quorum is left out: the weights of real servers differ, and min_up counts endpoints", "write min_up = the number of endpoints without which the sorry server is used")
	default:
		s.MinUp = uint16(min(65535, len(v.dests)-1, (int(want)+weight-1)/weight)) // without the sorry server
		s.note(at, fmt.Sprintf("below min_up = %d the sorry server is used beside the endpoints that are left, not in their place", s.MinUp), "")
	}
}
