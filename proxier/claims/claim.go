package claims

import (
	"fmt"
	"iter"
	"net/netip"
	"slices"

	"svcproxy.dev/svcproxy/source"
)

// A Claim is something that only one service can own: its name (key), an
// address with protocol and port, or, without an address, a port of the node.
type Claim struct {
	key      source.Key
	Addr     netip.Addr
	Protocol source.Protocol
	Port     uint16
}

// A holder owns a claim. The zero holder is this program itself.
type holder struct {
	unit *unit
	svc  *source.Service
}

// Of yields all claims of a service.
func Of(s *source.Service) iter.Seq[Claim] {
	return func(yield func(Claim) bool) {
		if !yield(Claim{key: s.Key}) {
			return
		}
		for _, p := range s.Ports {
			for a := range s.Addresses() {
				if !yield(Claim{Addr: a, Protocol: p.Protocol, Port: p.Port}) {
					return
				}
			}
			if p.NodePort != 0 && !yield(Claim{Protocol: p.Protocol, Port: p.NodePort}) {
				return
			}
		}
		if s.HealthCheckNodePort != 0 {
			yield(Claim{Protocol: source.TCP, Port: s.HealthCheckNodePort})
		}
	}
}

// PortAddr returns the claim as an element of source.Service.Without.
func (c Claim) PortAddr() source.PortAddr {
	return source.PortAddr{Protocol: c.Protocol, AddrPort: netip.AddrPortFrom(c.Addr, c.Port)}
}

// String names the claim for people, without the service.
func (c Claim) String() string {
	switch {
	case c.Port == 0:
		return "its name"
	case !c.Addr.IsValid():
		return fmt.Sprintf("node port %d/%s", c.Port, c.Protocol)
	}
	return fmt.Sprintf("%s/%s", netip.AddrPortFrom(c.Addr, c.Port), c.Protocol)
}

// Pos is where a service states c in its file.
func (c Claim) Pos(s *source.Service) source.Position {
	switch {
	case c.Port == 0:
		return s.NamePos()
	case c.Addr.IsValid():
		return s.AddrPos(c.Addr)
	}
	return s.NodePortPos(c.Protocol, c.Port)
}

// taken returns the fault that h already owns c, which svc claims.
func taken(svc *source.Service, c Claim, h holder) source.Fault {
	f := source.Fault{Pos: c.Pos(svc)}
	switch {
	case h.svc == nil:
		f.Msg = fmt.Sprintf("service %q: port %d/%s is the one svcproxy itself listens on", svc.Key, c.Port, c.Protocol)
		f.Hint = "choose another port, or another http_address, metrics_address or port of [bgp]"
	case c.Port == 0:
		f.Msg = fmt.Sprintf("service %q is already defined (%s)", svc.Key, h.writtenAt(c))
	default:
		f.Msg = fmt.Sprintf("service %q: %s is taken by %q (%s)", svc.Key, c, h.svc.Key, h.writtenAt(c))
	}
	return f
}

// writtenAt returns where the holder states c in its file.
func (h holder) writtenAt(c Claim) string {
	if h.svc.Pos.File != "" || h.unit == nil {
		return c.Pos(h.svc).String()
	}
	return source.Quote(h.unit.ID.Name)
}

// maxTaken is how many of the claims that a file cannot get are reported one by one.
const maxTaken = 1000

// conflicts returns why a file cannot get its claims: another one or this program owns them, or it makes them twice. For a
// service that is defined elsewhere only the name is reported, not what else the two have in common. It also
// returns the owners, each once: nil is this program, or the file itself.
func (t *Tracker) conflicts(u *unit) (faults []source.Fault, holders []*unit) {
	own := make(map[Claim]*source.Service)
	for _, s := range u.wanted {
		var twin *source.Service // of the same name
		for c := range Of(s) {
			by, held := t.claims[c]
			held = held && by.unit != u
			first, again := own[c]
			twice := again && (first != s || c.Addr.IsValid())
			if own[c] = s; !held {
				by = holder{u, first}
			}
			if !held && !twice {
				continue
			}
			if twin == nil || by.svc != twin {
				faults = addTaken(faults, s, c, by)
			}
			if c.Port == 0 {
				twin = by.svc
			}
			if held && !slices.Contains(holders, by.unit) {
				holders = append(holders, by.unit)
			}
			if twice && !slices.Contains(holders, nil) {
				holders = append(holders, nil)
			}
		}
	}
	return faults, holders
}

// addTaken adds to faults that h already owns c, which svc claims, or, beyond maxTaken, that there are more.
func addTaken(faults []source.Fault, svc *source.Service, c Claim, h holder) []source.Fault {
	switch n := len(faults); {
	case n < maxTaken:
		return append(faults, taken(svc, c, h))
	case n == maxTaken:
		msg := fmt.Sprintf("more of what this file claims is taken; the first %d are shown", maxTaken)
		return append(faults, source.Fault{Pos: c.Pos(svc), Msg: msg})
	}
	return faults
}

// touch notes that files took or released a claim, for other files that want it.
func (t *Tracker) touch(c Claim) {
	for _, u := range t.waiting[c] {
		u.stale = true
	}
	if len(t.objects.wants) > 0 {
		t.touched[c] = true
	}
}

// acquire grants a file the claims of services, which must be free.
func (t *Tracker) acquire(u *unit, services []*source.Service) {
	for _, s := range services {
		for c := range Of(s) {
			t.touch(c)
			t.claims[c] = holder{u, s}
		}
	}
}

// release releases all claims of a file.
func (t *Tracker) release(u *unit) {
	for _, s := range u.used {
		for c := range Of(s) {
			if t.claims[c].unit == u {
				t.touch(c)
				if delete(t.claims, c); t.reserved[c] {
					t.claims[c] = holder{}
				}
			}
		}
	}
}
