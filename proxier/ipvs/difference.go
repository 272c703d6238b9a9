package ipvs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"svcproxy.dev/svcproxy/netutil/lvs"
	"svcproxy.dev/svcproxy/proxier"
)

// counterLag is how long the kernel's counters of connections may be out of date: a
// timer moves connections from active to inactive, and idle ones were seen for 2 s.
const counterLag = 3 * time.Second

// A step is one message to IPVS.
type step struct {
	op   op
	key  lvs.Key
	srv  *server         // for addServer, updateServer and, once it is sent, addDest
	had  *server         // for updateServer
	dest lvs.Destination // for the others
}

type op uint8

const (
	addServer op = iota
	updateServer
	deleteServer
	addDest
	updateDest
	deleteDest
)

// do sends the message.
func (s step) do(ctx context.Context, c *lvs.Conn) error {
	switch s.op {
	case addServer:
		return s.withService(c.AddServer(ctx, s.srv.Server))
	case updateServer:
		return s.withService(c.UpdateServer(ctx, s.srv.Server))
	case deleteServer:
		return c.DeleteServer(ctx, s.key)
	case addDest:
		return s.withService(c.AddDestination(ctx, s.key, s.dest))
	case updateDest:
		return c.UpdateDestination(ctx, s.key, s.dest)
	}
	return c.DeleteDestination(ctx, s.key, s.dest.AddrPort)
}

// undo corrects servers, which already include the step, after the kernel refused a
// server or a new destination.
func (s step) undo(servers map[lvs.Key]*server) {
	switch s.op {
	case addServer:
		delete(servers, s.key)
	case updateServer:
		stays := *servers[s.key]
		stays.Server = s.had.Server
		servers[s.key] = &stays
	case addDest, updateDest: // a change of its way that the kernel cannot make removes it
		lacks := *servers[s.key]
		lacks.dests = slices.DeleteFunc(slices.Clone(lacks.dests), func(d lvs.Destination) bool { return d.AddrPort == s.dest.AddrPort })
		servers[s.key] = &lacks
	}
}

// withService adds the service to an error.
func (s step) withService(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("service %s: %w", s.srv.name, err)
}

// change describes the step, for Plan.
func (s step) change() proxier.Change {
	switch s.op {
	case addServer:
		return proxier.Change{Op: "add", Object: "virtual server " + serverText(s.srv.Server)}
	case updateServer:
		return proxier.Change{Op: "change", Object: "virtual server " + serverText(s.srv.Server)}
	case deleteServer:
		return proxier.Change{Op: "remove", Object: "virtual server " + s.key.String()}
	}
	verb := map[op]string{addDest: "add", updateDest: "change", deleteDest: "remove"}[s.op]
	return proxier.Change{Op: verb, Object: "destination " + destText(s.key, s.dest)}
}

// A difference leads from the actual to the desired servers. Steps that serve new
// connections are in first, those that end connections in last.
type difference struct {
	first, last []step

	now     time.Time
	timeout time.Duration // of drains
	drains  drains        // as recorded
	drained []drainChange // to be recorded
}

// server notes how to change the server at a key; nil: none. It returns what the kernel
// then holds there. A server that is no longer desired stays while destinations drain.
func (d *difference) server(key lvs.Key, have, want *server) *server {
	switch {
	case have == nil && want == nil:
		return nil
	case have == nil:
		d.first = append(d.first, step{op: addServer, key: key, srv: want})
		for _, to := range want.dests {
			d.first = append(d.first, step{op: addDest, key: key, dest: to})
		}
		return want
	case want != nil && have.Server != want.Server:
		d.first = append(d.first, step{op: updateServer, key: key, srv: want, had: have})
	}
	if want == nil {
		return d.removeOrDrain(key, have)
	}
	left := d.dests(key, have.dests, want.dests, want)
	if len(left) == 0 {
		return want // shares its destinations with others of its pool
	}
	out := *want
	out.dests = slices.Concat(want.dests, left)
	slices.SortFunc(out.dests, compareDests)
	return &out
}

// removeOrDrain notes how to change a server that is no longer desired.
func (d *difference) removeOrDrain(key lvs.Key, have *server) *server {
	n, says := len(d.last), *have
	says.closeRemoved = have.closeRemoved || isDatagrams(key) // a UDP flow must not go on where no service is
	if left := d.dests(key, have.dests, nil, &says); len(left) > 0 {
		return &server{Server: have.Server, name: have.name, dests: left, orphan: true}
	}
	d.last = append(d.last[:n], step{op: deleteServer, key: key}) // with its destinations
	return nil
}

// dests compares the actual and desired destinations, both sorted, and returns those
// that drain; says knows which do not.
func (d *difference) dests(key lvs.Key, have, want []lvs.Destination, says *server) (left []lvs.Destination) {
	for len(have)+len(want) > 0 {
		order := cmp.Compare(len(want), len(have)) // where one of them has none left
		if len(have) > 0 && len(want) > 0 {
			order = compareDests(have[0], want[0])
		}
		switch {
		case order > 0:
			d.first = append(d.first, step{op: addDest, key: key, dest: want[0]})
			want = want[1:]
		case order < 0:
			if d.drain(key, have[0], says.closes(have[0].AddrPort)) {
				left = append(left, draining(have[0]))
			}
			have = have[1:]
		default:
			d.changeDest(key, have[0], want[0])
			have, want = have[1:], want[1:]
		}
	}
	return left
}

// changeDest adds the step that makes an existing destination what is wanted. It may have been draining.
func (d *difference) changeDest(key lvs.Key, have, want lvs.Destination) {
	d.undrain(key, have.AddrPort)
	if isAs(have, want) {
		return
	}
	s := step{op: updateDest, key: key, dest: want}
	if want.Weight == 0 {
		d.last = append(d.last, s)
	} else {
		d.first = append(d.first, s)
	}
}

// drain notes how to change a removed destination, and reports whether it stays for a
// while, with weight 0. Its connections continue until they end or time out; those to be
// closed do not: the kernel ends a connection whose destination is gone at its next packet.
func (d *difference) drain(key lvs.Key, have lvs.Destination, closed bool) bool {
	since, drains := d.drains[key][have.AddrPort]
	if !drains || since.After(d.now) {
		since = d.now
	}
	waited := d.now.Sub(since)
	if closed || waited >= drainTime(key, d.timeout) || !have.Busy && drains && waited >= counterLag {
		d.undrain(key, have.AddrPort)
		d.last = append(d.last, step{op: deleteDest, key: key, dest: have})
		return false
	}
	d.drained = append(d.drained, drainChange{key, have.AddrPort, since})
	if have.Weight != 0 || have.ForeignOptions {
		d.last = append(d.last, step{op: updateDest, key: key, dest: draining(have)})
	}
	return true
}

// undrain notes that a destination no longer drains, if it did.
func (d *difference) undrain(key lvs.Key, at netip.AddrPort) {
	if _, drains := d.drains[key][at]; drains {
		d.drained = append(d.drained, drainChange{key: key, at: at})
	}
}

// addrDifference returns the missing and the extra addresses of a device, in order.
func addrDifference(have, want map[netip.Addr]struct{}) (missing, extra []netip.Addr) {
	return addrsBut(want, have), addrsBut(have, want)
}

// addrsBut returns the addresses that are not among others, in order.
func addrsBut(all, others map[netip.Addr]struct{}) (list []netip.Addr) {
	for a := range all {
		if _, ok := others[a]; !ok {
			list = append(list, a)
		}
	}
	slices.SortFunc(list, netip.Addr.Compare)
	return list
}

// readServer returns a server as the kernel holds it; nil: it does not exist.
func readServer(ctx context.Context, conn *lvs.Conn, key lvs.Key) (*server, error) {
	s, err := conn.Server(ctx, key)
	if errors.Is(err, lvs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return withDests(ctx, conn, s)
}

// withDests returns a server that was read with its destinations.
func withDests(ctx context.Context, conn *lvs.Conn, s lvs.Server) (*server, error) {
	dests, err := conn.Destinations(ctx, s.Key)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(dests, compareDests)
	return &server{Server: s, dests: dests}, nil
}
