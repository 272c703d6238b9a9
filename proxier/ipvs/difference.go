package ipvs

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"svcproxy/netutil/lvs"
	"svcproxy/proxier"
)

// lag is how long the kernel's counters of connections may be behind: they move
// from active to inactive by a timer, and idle connections were seen for 2 s.
const counterLag = 3 * time.Second

// A step is one message to IPVS.
type step struct {
	op   op
	key  lvs.Key
	srv  *server // of addServer, updateServer and, once it is sent, addDest
	had  *server // of updateServer
	dest dest    // of the others
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
		return s.withService(c.AddDestination(ctx, s.key, s.dest.AddrPort, uint16(s.dest.weight)))
	case updateDest:
		return c.UpdateDestination(ctx, s.key, s.dest.AddrPort, uint16(s.dest.weight))
	}
	return c.DeleteDestination(ctx, s.key, s.dest.AddrPort)
}

// undo corrects servers, which hold what the kernel should have after the step,
// where it did not take a server or a new destination.
func (s step) undo(servers map[lvs.Key]*server) {
	switch s.op {
	case addServer:
		delete(servers, s.key)
	case updateServer:
		stays := *servers[s.key]
		stays.Server = s.had.Server
		servers[s.key] = &stays
	case addDest:
		lacks := *servers[s.key]
		lacks.dests = slices.DeleteFunc(slices.Clone(lacks.dests), func(d dest) bool { return d.AddrPort == s.dest.AddrPort })
		servers[s.key] = &lacks
	}
}

// named adds the service to an error.
func (s step) withService(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("service %s: %w", s.srv.name, err)
}

// change says what the step does, for Plan.
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

// A difference is what leads from the servers that the kernel holds to those that
// it shall hold. What serves new connections comes first, what ends them last.
type difference struct {
	first, last []step

	now     time.Time
	timeout time.Duration // of drains
	drains  drains        // as they are recorded
	drained []drainChange // what is to be recorded of them
}

// server notes what must be done to the server at a key: nil is none. It returns
// what the kernel then holds there. A server that nobody wants stays as long as
// destinations of it drain.
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
	left := d.dests(key, have.dests, want.dests)
	if len(left) == 0 {
		return want // shares its destinations with others of its pool
	}
	return &server{Server: want.Server, name: want.name, dests: merge(want.dests, left)}
}

// leave notes what must be done to a server that nobody wants.
func (d *difference) removeOrDrain(key lvs.Key, have *server) *server {
	n := len(d.last)
	left := d.dests(key, have.dests, nil)
	if len(left) > 0 {
		return &server{Server: have.Server, name: have.name, dests: left, orphan: true}
	}
	d.last = append(d.last[:n], step{op: deleteServer, key: key}) // its destinations go with it
	return nil
}

// dests walks along what the kernel holds and what it shall hold, both sorted,
// and returns those that drain.
func (d *difference) dests(key lvs.Key, have, want []dest) (left []dest) {
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
			if d.drain(key, have[0]) {
				left = append(left, dest{AddrPort: have[0].AddrPort})
			}
			have = have[1:]
		default:
			d.keepDest(key, have[0], want[0])
			have, want = have[1:], want[1:]
		}
	}
	return left
}

// stay notes what must be done to a destination that is wanted. It may have drained.
func (d *difference) keepDest(key lvs.Key, have, want dest) {
	d.undrain(key, have.AddrPort)
	if have.weight == want.weight && !have.foreignOptions {
		return
	}
	s := step{op: updateDest, key: key, dest: want}
	if want.weight == 0 {
		d.last = append(d.last, s)
	} else {
		d.first = append(d.first, s)
	}
}

// drain notes what must be done to a destination that has left, and reports whether
// it stays for a while, with weight 0. Its connections go on until they end or its
// time is over; flows of UDP cannot be told to be over.
func (d *difference) drain(key lvs.Key, have dest) bool {
	since, draining := d.drains.since(key, have.AddrPort)
	if !draining || since.After(d.now) {
		since = d.now
	}
	waited := d.now.Sub(since)
	if !canDrain(key) || waited >= d.timeout || have.idle && draining && waited >= counterLag {
		d.undrain(key, have.AddrPort)
		d.last = append(d.last, step{op: deleteDest, key: key, dest: have})
		return false
	}
	d.drained = append(d.drained, drainChange{key, have.AddrPort, since})
	if have.weight != 0 || have.foreignOptions {
		d.last = append(d.last, step{op: updateDest, key: key, dest: dest{AddrPort: have.AddrPort}})
	}
	return true
}

// undrain notes that a destination does not drain, or no longer.
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

// addrDifference returns what a device lacks, and what it has too many, in order.
func addrDifference(have, want map[netip.Addr]struct{}) (missing, extra []netip.Addr) {
	for a := range want {
		if _, ok := have[a]; !ok {
			missing = append(missing, a)
		}
	}
	slices.SortFunc(missing, netip.Addr.Compare)
	for a := range have {
		if _, ok := want[a]; !ok {
			extra = append(extra, a)
		}
	}
	slices.SortFunc(extra, netip.Addr.Compare)
	return missing, extra
}
