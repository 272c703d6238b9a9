// Package explain says what becomes of a packet to a service, step by step, and what
// stands in its way: a Question about a World, what svcproxy holds, and a Host, with a Report as the answer.
//
//	question.go                  what is asked, and what svcproxy holds
//	decide.go                    what svcproxy does with the packet: pure
//	facts.go                     what is asked of the host, by small interfaces
//	host.go                      this host, which fulfils them
//	judge.go, choice.go, path.go decision and facts against each other: pure
//	report.go                    what is answered
//
// Policy is that of policy.Resolve; which endpoint is used, and why others are not, is
// that of policy.States.
package explain

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/cmd/internal/modes"
	"svcproxy.dev/svcproxy/proxier/claims"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/report"
	"svcproxy.dev/svcproxy/source"
)

// A Question is a packet.
type Question struct {
	Source   netip.Addr      `json:"source"`
	Dest     netip.Addr      `json:"destination"`
	Port     uint16          `json:"port,omitempty"` // 0: whatever the address serves
	Protocol source.Protocol `json:"protocol,omitempty"`
	In       string          `json:"interface,omitempty"` // by which it comes in; empty: by the one of the way back
}

// Parse returns what src, and dst as DST[:PORT][/PROTO], ask for. Without protocol a port is one of TCP.
func Parse(src, dst, in string) (q Question, err error) {
	if q.Source, err = source.ParseAddr(src); err != nil {
		return q, fmt.Errorf("source %q: want an IP address", src)
	}
	if q.Dest, q.Port, q.Protocol, err = source.ParseDestination(dst); err != nil {
		return q, fmt.Errorf("destination %q: %w; want ADDRESS[:PORT][/PROTOCOL], as in 10.96.0.10:80/tcp or [fd00::10]:53/udp", dst, err)
	}
	if q.Port != 0 && q.Protocol == 0 {
		q.Protocol = source.TCP
	}
	q.In = in
	return q, q.Check()
}

// Check returns what is wrong with a question that came from elsewhere.
func (q Question) Check() error {
	switch {
	case !q.Source.IsValid() || !q.Dest.IsValid():
		return fmt.Errorf("source and destination are IP addresses")
	case q.Source.Is4() != q.Dest.Is4():
		return fmt.Errorf("source %s and destination %s are of different address families", q.Source, q.Dest)
	case len(q.In) >= unix.IFNAMSIZ || strings.ContainsFunc(q.In, func(r rune) bool { return r <= ' ' || r > '~' || r == '/' }):
		return fmt.Errorf("%q: no interface can have such a name", q.In)
	}
	return nil
}

func (q Question) String() string {
	if q.Port == 0 {
		return q.Dest.String()
	}
	return fmt.Sprintf("%s/%s", netip.AddrPortFrom(q.Dest, q.Port), q.Protocol)
}

// Path is where the control socket answers questions.
const Path = "/v1/explain"

// Query returns q as the control socket takes it.
func (q Question) Query() url.Values {
	v := url.Values{"source": {q.Source.String()}, "destination": {q.Dest.String()}, "interface": {q.In}}
	if q.Port != 0 {
		v.Set("port", strconv.Itoa(int(q.Port)))
	}
	if q.Protocol != 0 {
		v.Set("protocol", q.Protocol.String())
	}
	return v
}

// FromQuery returns the question of a query.
func FromQuery(v url.Values) (Question, error) {
	to := v.Get("destination")
	if v.Has("port") {
		to = net.JoinHostPort(to, v.Get("port"))
	}
	if v.Has("protocol") {
		to += "/" + v.Get("protocol")
	}
	return Parse(v.Get("source"), to, v.Get("interface"))
}

// A World is what svcproxy holds.
type World struct {
	claims.Snapshot
	Mode string
	modes.Balancing
	Accepts bool     // its rules are in tables of iptables, and accept its forwarded packets there
	Unread  []string // what is wrong with files, for whose sake services may be missing

	// Announced are the addresses that services ask to be announced; without a daemon: none.
	Announced []report.AnnouncedAddress

	// Places returns where the endpoints of a service stand, in their order; nil, also as
	// what it returns: not known.
	Places func(*source.Service) []source.Position

	// Details returns what is known of the endpoints of a service beside its Conditions, by
	// source.Service.EndpointAt; nil: no daemon is asked, which would know.
	Details func(source.Key) map[netip.AddrPort]policy.Detail
}

// NewWorld returns what is held in a mode.
func NewWorld(s claims.Snapshot, m modes.Mode) *World {
	return &World{Snapshot: s, Mode: m.Name, Balancing: m.Balancing, Accepts: m.Forward != ""}
}

// AddFaults notes the files of a source that are not used as they stand, or whose warnings
// say what of them is not used.
func (w *World) AddFaults(st source.Status) {
	for _, f := range st.Files {
		if fault := source.FirstError(f.Faults); fault != nil && f.State != source.Accepted {
			w.Unread = append(w.Unread, fmt.Sprintf("%s (%s)", filepath.Base(f.Path), fault))
		}
	}
}
