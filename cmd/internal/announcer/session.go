package announcer

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// A Session is that with one router.
type Session struct {
	Peer        netip.Addr `json:"peer"`
	AS          uint32     `json:"as"`
	State       string     `json:"state"` // of RFC 4271: "idle", "active", "opensent", "openconfirm" or "established"
	Since       time.Time  `json:"since"`
	LastError   string     `json:"last_error,omitempty"`
	LastErrorAt time.Time  `json:"last_error_at,omitzero"`

	Notice string `json:"notice,omitempty"` // what to do about a session that is established all the same

	IPv4 SessionRoutes `json:"ipv4"`
	IPv6 SessionRoutes `json:"ipv6"`
}

// SessionRoutes are those of one family.
type SessionRoutes struct {
	Announced int    `json:"announced"`          // that the router gets
	Refused   int    `json:"refused"`            // that it sends, none of which is used
	Withheld  string `json:"withheld,omitempty"` // why it gets none of this family
}

// Established is the state in which routers get routes.
const Established = "established"

// Up reports whether the router gets routes.
func (s *Session) Up() bool { return s.State == Established }

// withheld says why the router gets no routes of a family; empty: it does.
func (s *Session) withheld(fam policy.Family) string {
	switch {
	case !s.Up():
		return "no session is established"
	case fam == policy.IPv6:
		return s.IPv6.Withheld
	}
	return s.IPv4.Withheld
}

// Why names what keeps routes from being announced and what to do about the session. It is empty where nothing does.
func (s *Session) Why() string {
	parts := []string{s.LastError, s.Notice}
	if s.Up() {
		parts = []string{s.IPv4.Withheld, s.IPv6.Withheld, s.Notice}
	}
	parts = slices.DeleteFunc(parts, func(part string) bool { return part == "" })
	return strings.Join(slices.Compact(parts), "; ")
}

// addLack shows in status why the password of the router cannot be read.
func (s *Session) addLack(l lack) {
	text := source.Printable(l.why)
	switch {
	case text == "":
	case l.kept:
		s.Notice = strings.TrimPrefix(s.Notice+"; "+text, "; ")
	default:
		s.LastError = text
	}
}
