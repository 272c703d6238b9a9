package explain

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"strconv"

	"svcproxy.dev/svcproxy/cmd/internal/modes"
	"svcproxy.dev/svcproxy/proxier/claims"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/report"
	"svcproxy.dev/svcproxy/source"
)

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
