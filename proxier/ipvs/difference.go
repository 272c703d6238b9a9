package ipvs

import (
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
	srv  *server // for addServer, updateServer and, once it is sent, addDest
	had  *server // for updateServer
	dest dest    // for the others
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
		return s.withService(c.AddDestination(ctx, s.key, s.dest.forKernel()))
	case updateDest:
		return c.UpdateDestination(ctx, s.key, s.dest.forKernel())
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
		lacks.dests = slices.DeleteFunc(slices.Clone(lacks.dests), func(d dest) bool { return d.AddrPort == s.dest.AddrPort })
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
	out.dests = merge(want.dests, left)
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
func (d *difference) dests(key lvs.Key, have, want []dest, says *server) (left []dest) {
	for len(have)+len(want) > 0 {
		order := 0
		switch {
		case len(have) == 0:
			order = 1
		case len(want) == 0:
			order = -1
		default:
			order = have[0].Compare(want[0].AddrPort)
		}
		switch {
		case order > 0:
			d.first = append(d.first, step{op: addDest, key: key, dest: want[0]})
			want = want[1:]
		case order < 0:
			if d.drain(key, have[0], says.closes(have[0].AddrPort)) {
				left = append(left, have[0].draining())
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
func (d *difference) changeDest(key lvs.Key, have, want dest) {
	d.undrain(key, have.AddrPort)
	if have.is(want) {
		return
	}
	s := step{op: updateDest, key: key, dest: want}
	if want.weight == 0 {
		d.last = append(d.last, s)
	} else {
		d.first = append(d.first, s)
	}
}

// drain notes how to change a removed destination, and reports whether it stays for a
// while, with weight 0. Its connections continue until they end or time out; those to be
// closed do not: the kernel ends a connection whose destination is gone at its next packet.
func (d *difference) drain(key lvs.Key, have dest, closed bool) bool {
	since, draining := d.drains.since(key, have.AddrPort)
	if !draining || since.After(d.now) {
		since = d.now
	}
	waited := d.now.Sub(since)
	if closed || waited >= drainTime(key, d.timeout) || have.idle && draining && waited >= counterLag {
		d.undrain(key, have.AddrPort)
		d.last = append(d.last, step{op: deleteDest, key: key, dest: have})
		return false
	}
	d.drained = append(d.drained, drainChange{key, have.AddrPort, since})
	if have.weight != 0 || have.foreignOptions {
		d.last = append(d.last, step{op: updateDest, key: key, dest: have.draining()})
	}
	return true
}

// undrain notes that a destination no longer drains, if it did.
func (d *difference) undrain(key lvs.Key, at netip.AddrPort) {
	if _, draining := d.drains.since(key, at); draining {
		d.drained = append(d.drained, drainChange{key: key, at: at})
	}
}

// merge returns two sorted lists as one.
func merge(a, b []dest) []dest {
	out := make([]dest, 0, len(a)+len(b))
	for len(a) > 0 && len(b) > 0 {
		if a[0].Compare(b[0].AddrPort) < 0 {
			out, a = append(out, a[0]), a[1:]
		} else {
			out, b = append(out, b[0]), b[1:]
		}
	}
	return append(append(out, a...), b...)
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
	dests, err := conn.Destinations(ctx, key)
	if err != nil {
		return nil, err
	}
	return serverFrom(lvs.Listing{Server: s, Destinations: dests}), nil
}

// serverFrom converts a listed server.
func serverFrom(l lvs.Listing) *server {
	s := &server{Server: l.Server, dests: make([]dest, len(l.Destinations))}
	for i, d := range l.Destinations {
		s.dests[i] = dest{AddrPort: d.AddrPort, weight: d.Weight, way: d.Forwarding, limits: d.Limits, foreignOptions: d.ForeignOptions, idle: d.Idle()}
	}
	slices.SortFunc(s.dests, func(a, b dest) int { return a.Compare(b.AddrPort) })
	return s
}
