package trace

import (
	"encoding/binary"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/source"
)

// A sighting is what was seen of one new connection so far.
type sighting struct {
	number [2]uint32 // family, and what its rules gave to the packet
	traces []uint32  // of the packet, where chains are asked for: it has another one behind the loopback interface
	conn   tuple     // as it was sent
	now    tuple     // as it was last seen
	at     time.Time
	in     string // interface
	where  string // it was last seen
	steps  []step // through chains, where they are asked for
}

// A step is one chain that a packet met, and how it left it, if that is known.
type step struct{ table, chain, verdict string }

// gone reports whether it left the rules, for the network or for this host.
func (s *sighting) gone() bool { return s.where == seenOut || s.where == seenHost }

// translated reports whether the connection goes to another address than it was sent to.
func (s *sighting) translated() bool {
	return s.now.dst != s.conn.dst
}

// line says what became of the connection, as seen and as the services say.
func (s *sighting) line(n *Names) Line {
	l := Line{Time: s.at, Source: s.address(s.conn.src, false), Destination: s.address(s.conn.dst, true), Interface: s.in}
	f := n.frontend(s.conn.dst, s.conn.protocol)
	if f != nil {
		l.Service, l.Port = f.Service, f.Port
	}
	l.Chains = chains(s.steps)
	why, refuses := n.reason(f, s.conn.src.Addr(), s.conn.dst.Addr(), s.in)
	if why == "" && s.answered(f, n) {
		s.forwarded(&l, f)
	} else {
		s.judge(&l, n, why, refuses)
	}
	return l
}

// judge sets the verdict. What was seen counts; why is what the services say of it.
func (s *sighting) judge(l *Line, n *Names, why string, refuses bool) {
	switch {
	case s.where == seenUntracked:
		l.Verdict, l.Why = Untracked, "a notrack rule hides it from all services"
	case s.where == seenReset || s.where == seenUnreachable:
		l.Verdict, l.Why = Refused, why
		if s.translated() {
			l.Why = fmt.Sprintf("on its way to %s, by a rule of another program", s.now.dst)
		} else if !refuses {
			l.Why = join(why, "by a rule of another program")
		}
	case s.translated() && s.gone():
		s.balanced(l, n)
	case s.translated():
		l.Verdict, l.Why = Dropped, fmt.Sprintf("on its way to %s: a firewall, or no route (svcproxy explain)", s.now.dst)
	case s.gone() && refuses:
		l.Verdict, l.Why = Dropped, join(why, "an answer was not seen: the kernel limits how many it sends")
		if s.where == seenOut {
			l.Verdict, l.Why = Untouched, join(why, "the rules do not do what the services say (svcproxy status)")
		}
	case s.gone():
		l.Verdict, l.Why = Untouched, why
		if why == "" {
			l.Why = "the rules do not do what the services say (svcproxy status)"
		}
	case refuses:
		l.Verdict, l.Why = Dropped, join(why, "an answer was not seen: the kernel limits how many it sends, or a firewall was first")
	case why == "" || why == notOurs:
		l.Verdict, l.Why = Dropped, join(why, "by a firewall, or no route (svcproxy explain)")
	default:
		l.Verdict, l.Why = Dropped, why
	}
}

// answered reports whether the connection went to an endpoint that answers the client itself: as it
// was sent or, where it can no longer be seen, in a tunnel.
func (s *sighting) answered(f *Frontend, n *Names) bool {
	if f == nil || f.Forward == "" || n.isLocal(s.conn.src.Addr(), s.in) {
		return false
	}
	return s.where == seenOut || f.Forward == source.ForwardTunnel.String() && s.where == seenRouted
}

// forwarded says what is known of such a connection.
func (s *sighting) forwarded(l *Line, f *Frontend) {
	l.Verdict, l.Why = Balanced, "forward is "+f.Forward+": the endpoint is not seen here, and answers the client itself"
	if s.where != seenOut {
		l.Why += "; unless a firewall drops it (svcproxy explain)"
	}
}

// balanced says to which endpoint.
func (s *sighting) balanced(l *Line, n *Names) {
	l.Verdict, l.Endpoint = Balanced, s.now.dst.String()
	if s.now.src.Addr() != s.conn.src.Addr() {
		l.Masquerade = s.now.src.Addr().String()
	}
	node, ours := n.Endpoints[s.now.dst.Addr()]
	if l.Node = node; !ours {
		l.Why = "no endpoint of a service: by a rule of another program"
	}
}

func join(parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), "; ")
}

// address writes one end of the connection.
func (s *sighting) address(a netip.AddrPort, protocol bool) string {
	text, name := a.String(), s.conn.protocol.String()
	switch {
	case slices.Contains(source.Protocols, s.conn.protocol):
	case s.conn.protocol == unix.IPPROTO_ICMP || s.conn.protocol == unix.IPPROTO_ICMPV6:
		text, name = a.Addr().String(), "icmp"
	default:
		text = a.Addr().String()
	}
	if protocol {
		text += "/" + name
	}
	return text
}

// chains writes steps, a line for each table that was met in a row.
func chains(steps []step) (list []string) {
	for i, s := range steps {
		text := s.chain
		if s.verdict != "" {
			text += " " + s.verdict
		}
		if i > 0 && steps[i-1].table == s.table {
			list[len(list)-1] += ", " + text
		} else {
			list = append(list, s.table+": "+text)
		}
	}
	return list
}

// tupleOf returns the connection that the headers of a packet say, as the kernel does.
func tupleOf(family byte, b []byte) (t tuple, ok bool) {
	n := 40 // bytes of the header, without extensions
	if family == unix.NFPROTO_IPV4 && len(b) > 0 {
		n = int(b[0]&0xf) * 4
	}
	if n < 20 || len(b) < n+4 {
		return t, false // it is cut off
	}
	var src, dst netip.Addr
	if family == unix.NFPROTO_IPV4 {
		t.protocol = source.Protocol(b[9])
		src, dst = netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20]))
	} else {
		t.protocol = source.Protocol(b[6])
		src, dst = netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40]))
	}
	b = b[n:]
	a, z := binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])
	if t.protocol == unix.IPPROTO_ICMP || t.protocol == unix.IPPROTO_ICMPV6 {
		if len(b) < 6 {
			return t, false
		}
		a, z = binary.BigEndian.Uint16(b[4:]), a // identifier; type and code
	}
	t.src, t.dst = netip.AddrPortFrom(src, a), netip.AddrPortFrom(dst, z)
	return t, true
}

// A Line is what became of one new connection.
type Line struct {
	Time        time.Time `json:"time"` // when its packet was seen
	Source      string    `json:"source"`
	Destination string    `json:"destination"`         // "10.96.0.10:80/tcp"; "10.96.0.10/icmp"
	Interface   string    `json:"interface,omitempty"` // where it came in; empty: of this host itself
	Service     string    `json:"service,omitempty"`
	Port        string    `json:"port,omitempty"` // its name
	Verdict     string    `json:"verdict"`
	Endpoint    string    `json:"endpoint,omitempty"`
	Node        string    `json:"node,omitempty"` // of the endpoint
	Masquerade  string    `json:"masqueraded_as,omitempty"`
	Why         string    `json:"why,omitempty"`
	Chains      []string  `json:"chains,omitempty"`
}

// What this host did with a packet, as it was seen to. Balanced: sent to an endpoint. Refused: answered by a reset or an ICMP error. Dropped:
// neither; by a rule of svcproxy where Why has its reason. Untouched: passed on with the
// address that it was sent to. Untracked: hidden from connection tracking, and so from
// every service. Unknown: events were lost.
const (
	Balanced  = "balanced"
	Refused   = "refused"
	Dropped   = "dropped"
	Untouched = "untouched"
	Untracked = "untracked"
	Unknown   = "unknown"
)

// Header is the first line of a trace for people.
const Header = "TIME          SOURCE                 DESTINATION              SERVICE               VERDICT"

// WriteTo writes l for people. Nothing in it can steer a terminal.
func (l *Line) WriteText(w io.Writer) error {
	_, err := fmt.Fprintf(w, "%s  %-21s  %-23s  %-20s  %s\n", l.Time.Format("15:04:05.000"), source.Printable(l.Source),
		source.Printable(l.Destination), source.Printable(l.service()), source.Printable(l.outcome()))
	for _, c := range l.Chains {
		if err == nil {
			_, err = fmt.Fprintf(w, "              %s\n", source.Printable(c))
		}
	}
	return err
}

func (l *Line) service() string {
	switch {
	case l.Service == "":
		return "-"
	case l.Port == "":
		return l.Service
	}
	return l.Service + ":" + l.Port
}

// outcome is the verdict in words.
func (l *Line) outcome() string {
	text := l.Verdict
	if l.Verdict == Balanced && l.Endpoint != "" { // else only the endpoint itself knows
		text += " to " + l.Endpoint
		if l.Node != "" {
			text += " on " + l.Node
		}
		if l.Masquerade != "" {
			text += ", masqueraded as " + l.Masquerade
		}
	}
	if l.Why != "" {
		text += ": " + l.Why
	}
	return text
}
