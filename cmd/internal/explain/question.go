// Package explain says what becomes of a packet to a service, step by step, and what
// stands in its way: a Question about a World, what svcproxy holds, and a Host, with a Report as the answer.
//
//	question.go                  what is asked
//	world.go                     what svcproxy holds
//	addressed.go                 what services have at the address: pure
//	decide.go                    what svcproxy does with the packet: pure
//	facts.go                     what is asked of the host, by small interfaces
//	host.go                      this host, which fulfils them
//	judge.go, choice.go, path.go, answers.go
//	                             decision and facts against each other: pure
//	report.go                    what is answered
//
// Policy is that of policy.Resolve; which endpoint is used, and why others are not, is
// that of policy.States.
package explain

import (
	"fmt"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"

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
