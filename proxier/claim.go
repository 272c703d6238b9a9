package proxier

import (
	"fmt"
	"iter"
	"net/netip"
	"slices"

	"svcproxy.dev/svcproxy/source"
)

// A claim is something that only one service can own: its name (key), an
// address with protocol and port, or, without an address, a port of the node.
type claim struct {
	key      source.Key
	addr     netip.Addr
	protocol source.Protocol
	port     uint16
}

// A holder owns a claim. The zero holder is this program itself.
type holder struct {
	unit *unit
	svc  *source.Service
}

// claims yields all claims of a service.
func claims(s *source.Service) iter.Seq[claim] {
	return func(yield func(claim) bool) {
		if !yield(claim{key: s.Key}) {
			return
		}
		for _, p := range s.Ports {
			for a := range addresses(s) {
				if !yield(claim{addr: a, protocol: p.Protocol, port: p.Port}) {
					return
				}
			}
			if p.NodePort != 0 && !yield(claim{protocol: p.Protocol, port: p.NodePort}) {
				return
			}
		}
		if s.HealthCheckNodePort != 0 {
			yield(claim{protocol: source.TCP, port: s.HealthCheckNodePort})
		}
	}
}

// portAddr returns the claim as an element of source.Service.Without.
func (c claim) portAddr() source.PortAddr {
	return source.PortAddr{Protocol: c.protocol, AddrPort: netip.AddrPortFrom(c.addr, c.port)}
}

func (c claim) String() string {
	switch {
	case c.port == 0:
		return "its name"
	case !c.addr.IsValid():
		return fmt.Sprintf("node port %d/%s", c.port, c.protocol)
	}
	return fmt.Sprintf("%s/%s", netip.AddrPortFrom(c.addr, c.port), c.protocol)
}

// pos is where a service states c in its file.
func (c claim) pos(s *source.Service) source.Position {
	switch {
	case c.port == 0:
		return s.NamePos()
	case c.addr.IsValid():
		return s.AddrPos(c.addr)
	}
	return s.NodePortPos(c.protocol, c.port)
}

// taken returns the fault that h already owns c, which svc claims.
func taken(svc *source.Service, c claim, h holder) source.Fault {
	f := source.Fault{Pos: c.pos(svc)}
	switch {
	case h.svc == nil:
		f.Msg = fmt.Sprintf("service %q: port %d/%s is the one svcproxy itself listens on", svc.Key, c.port, c.protocol)
		f.Hint = "choose another port, or another http_address, metrics_address or port of [bgp]"
	case c.port == 0:
		f.Msg = fmt.Sprintf("service %q is already defined (%s)", svc.Key, h.writtenAt(c))
	default:
		f.Msg = fmt.Sprintf("service %q: %s is taken by %q (%s)", svc.Key, c, h.svc.Key, h.writtenAt(c))
	}
	return f
}

// writtenAt returns where the holder states c in its file.
func (h holder) writtenAt(c claim) string {
	if h.svc.Pos.File != "" || h.unit == nil {
		return c.pos(h.svc).String()
	}
	return source.Quote(h.unit.ID.Name)
}

// A clash is a claim that a file cannot get.
type clash struct {
	svc   *source.Service
	claim claim
	by    holder // another file or this program; if neither owns it, the file itself
	held  bool   // one of these two owns it
	twice bool   // the file makes it twice, so it can never get it
}

// clashes yields all claims of a file that another one owns, and those that it makes twice.
func (t *Tracker) clashes(u *unit) iter.Seq[clash] {
	return func(yield func(clash) bool) {
		own := make(map[claim]holder)
		for _, s := range u.wanted {
			for c := range claims(s) {
				x := clash{svc: s, claim: c}
				x.by, x.held = t.claims[c]
				x.held = x.held && x.by.unit != u
				first, again := own[c]
				x.twice = again && (first.svc != s || c.addr.IsValid())
				own[c] = holder{u, s}
				if !x.held {
					x.by = first
				}
				if (x.held || x.twice) && !yield(x) {
					return
				}
			}
		}
	}
}

// maxTaken is how many of the claims that a file cannot get are reported one by one.
const maxTaken = 1000

// conflicts returns why a file cannot get its claims. For a service that is defined
// elsewhere only the name is reported, not what else the two have in common. It also
// returns the owners, each once: nil is this program, or the file itself.
func (t *Tracker) conflicts(u *unit) (faults []source.Fault, holders []*unit) {
	var svc, twin *source.Service // of the same name
	for x := range t.clashes(u) {
		if x.svc != svc {
			svc, twin = x.svc, nil
		}
		if twin == nil || x.by.svc != twin {
			faults = x.tell(faults)
		}
		if x.claim.port == 0 {
			twin = x.by.svc
		}
		if x.held {
			holders = including(holders, x.by.unit)
		}
		if x.twice {
			holders = including(holders, nil)
		}
	}
	return faults, holders
}

// tell adds the clash to faults or, beyond maxTaken, that there are more.
func (x *clash) tell(faults []source.Fault) []source.Fault {
	switch n := len(faults); {
	case n < maxTaken:
		return append(faults, taken(x.svc, x.claim, x.by))
	case n == maxTaken:
		msg := fmt.Sprintf("more of what this file claims is taken; the first %d are shown", maxTaken)
		return append(faults, source.Fault{Pos: x.claim.pos(x.svc), Msg: msg})
	}
	return faults
}

func including(list []*unit, u *unit) []*unit {
	if slices.Contains(list, u) {
		return list
	}
	return append(list, u)
}

// touch notes that files took or released a claim, for other files that want it.
func (t *Tracker) touch(c claim) {
	for _, u := range t.waiting[c] {
		u.stale = true
	}
	if len(t.objects.first) > 0 {
		t.touched[c] = true
	}
}

// acquire grants a file the claims of services, which must be free.
func (t *Tracker) acquire(u *unit, services []*source.Service) {
	for _, s := range services {
		for c := range claims(s) {
			t.touch(c)
			t.claims[c] = holder{u, s}
		}
	}
}

// release releases all claims of a file.
func (t *Tracker) release(u *unit) {
	for _, s := range u.used {
		for c := range claims(s) {
			if t.claims[c].unit == u {
				t.touch(c)
				if delete(t.claims, c); t.reserved[c] {
					t.claims[c] = holder{}
				}
			}
		}
	}
}
