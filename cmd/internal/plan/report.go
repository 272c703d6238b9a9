// Package plan says what a sync would change: services in words, what becomes of
// connections, and kernel objects: a Report, with an Edit for each key that changes.
//
//	report.go    what is known, as JSON has it
//	words.go     services before and after
//	write.go     a report on one screen
//	read.go      service files, and what was there before them
//	against.go   two directories, compared without a kernel
package plan

import (
	"fmt"
	"strings"
	"time"

	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/claims"
	"svcproxy.dev/svcproxy/proxier/report"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/decode"
)

// A Report is what a sync would change.
type Report struct {
	Against      string               `json:"against"`            // what services are compared with
	Mode         string               `json:"mode"`               // never "auto"
	Settings     []Edit               `json:"settings,omitempty"` // that differ, of two directories
	Services     []Service            `json:"services"`           // in order of their names
	Consequences []report.Consequence `json:"consequences"`
	Objects      []Object             `json:"objects"`              // of the kernel
	Faults       []source.Fault       `json:"faults,omitempty"`     // of files, warnings too
	Errors       []string             `json:"errors,omitempty"`     // why a part is not known
	Unreadable   bool                 `json:"unreadable,omitempty"` // a fault says what
}

// Changes reports whether a sync would change anything.
func (r *Report) Changes() bool { return len(r.Settings)+len(r.Services)+len(r.Objects) > 0 }

// A Service is one that would change.
type Service struct {
	Name  string `json:"name"`
	Op    string `json:"op"` // "add", "change" or "remove"
	Edits []Edit `json:"edits,omitempty"`
}

// An Edit is what changes of a service, or of settings: a value, or members of a list.
type Edit struct {
	Key     string   `json:"key"` // as files have it
	Old     string   `json:"old,omitempty"`
	New     string   `json:"new,omitempty"`
	Added   []string `json:"added,omitempty"`
	Removed []string `json:"removed,omitempty"`
}

// An Object is one of the kernel.
type Object struct {
	Family string `json:"family"`
	proxier.Change
}

// A Setting is what else a report depends on.
type Setting struct {
	Drains bool          // endpoints that left lose their connections
	Drain  time.Duration // after this

	// Count counts connections; nil: nobody can.
	Count func(*report.FamilyPlan, []report.Consequence) error
}

// Fill adds what changes: services as sources have them, and what families make of it.
func (r *Report) Fill(edits []claims.Transition, families []*report.FamilyPlan, in Setting) {
	r.Services, r.Consequences, r.Objects = []Service{}, []report.Consequence{}, []Object{}
	for _, tr := range edits {
		r.Services = append(r.Services, serviceOf(tr))
	}
	for _, f := range families {
		for _, o := range f.Objects {
			r.Objects = append(r.Objects, Object{f.Family.String(), o})
		}
		if f.Err != nil {
			r.Errors = append(r.Errors, f.Err.Error())
		}
		list := f.Consequences()
		if in.Count != nil {
			if err := in.Count(f, list); err != nil {
				r.Errors = append(r.Errors, fmt.Sprintf("counting connections of %s: %v", f.Family, err))
			}
		}
		for _, c := range list {
			in.bound(&c)
			r.Consequences = append(r.Consequences, c)
		}
	}
}

// bound says for how long connections go on.
func (in Setting) bound(c *report.Consequence) {
	switch {
	case c.Effect != report.GoOn || !in.Drains || c.Protocol == source.UDP.String():
	case in.Drain == 0:
		c.Effect = report.Cut
	default:
		c.AtMost = decode.ShortDuration(in.Drain)
	}
}

// consequenceText returns a consequence as a sentence without the service.
func consequenceText(c report.Consequence) string {
	at := named(c.Endpoints)
	if at == "" {
		at = named(c.Frontends)
	}
	now := ""
	if c.Connections != nil {
		now = fmt.Sprintf(" (%d now)", *c.Connections)
	}
	proto := strings.ToUpper(c.Protocol)
	switch c.Effect {
	case report.GoOn:
		if c.Protocol == "udp" {
			return "UDP flows to " + at + " stay where they are until they time out" + now
		}
		if c.AtMost != "" {
			return fmt.Sprintf("established %s connections to %s go on for %s at most%s", proto, at, c.AtMost, now)
		}
		return fmt.Sprintf("established %s connections to %s go on%s", proto, at, now)
	case report.Cut:
		return fmt.Sprintf("established %s connections to %s are cut%s", proto, at, now)
	case report.Closed:
		return fmt.Sprintf("established %s connections to %s are closed%s", proto, at, now)
	case report.FlowsRemoved:
		return "UDP flows to " + at + " are removed" + now
	case report.Predating:
		return "UDP flows to " + at + " from before it served are removed" + now
	case report.Barred:
		if len(c.Sources) == 0 {
			return fmt.Sprintf("new %s connections to %s are dropped: nobody is admitted", proto, at)
		}
		return fmt.Sprintf("new %s connections to %s are dropped unless they are from %s", proto, at, named(c.Sources))
	case report.Kept:
		return at + " keeps its connections and gets no new ones" + now
	}
	if len(c.Endpoints) == 0 {
		return "session affinity: all clients get any endpoint"
	}
	rest := ""
	switch {
	case c.Others == 1:
		rest = "; the other endpoint keeps its clients"
	case c.Others > 1:
		rest = fmt.Sprintf("; %d others keep theirs", c.Others)
	}
	return "session affinity: clients of " + at + " get another endpoint" + rest
}

// named lists the first names and counts the others.
func named[T any](list []T) string {
	const most = 4
	shown, more := list, ""
	if n := len(list); n > most {
		shown, more = list[:most-1], fmt.Sprintf(" and %d more", n-most+1)
	}
	var texts []string
	for _, v := range shown {
		texts = append(texts, fmt.Sprint(v))
	}
	return strings.Join(texts, ", ") + more
}
