package convert

import (
	"bytes"
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"svcproxy.dev/svcproxy/cmd/internal/convert/reader"
	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/proxier/claims"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/file"
	"svcproxy.dev/svcproxy/source/read"
)

// A Judge holds services to what a service file is held to.
type Judge struct {
	Rules    read.Rules
	Mode     string           // that services are for; "auto": one that may not be ipvs
	Written  string           // the mode that svcproxy.toml says, which the daemon takes
	Reserved []netip.AddrPort // addresses and ports that no service may have
}

// A Document is a service file, and what is to be said of it.
type Document struct {
	TOML     []byte
	Notes    []reader.Note // in order of position
	Services int           // that are none of the comments
	Serving  int           // of these, services that have an endpoint
	Opened   []string      // names of these that let in sources that were kept out
}

// A judged service is its text, and why it cannot be used.
type judged struct {
	*reader.Service
	text   string
	faults []source.Fault
}

// Document returns the service file of what was read. Reading it back finds no fault.
func (j Judge) Document(r *reader.Result, head string) (*Document, error) {
	j.noteMode(r)
	all := make([]*judged, len(r.Services))
	for i, s := range r.Services {
		all[i] = j.judge(s)
	}
	j.refuse(all)
	d := &Document{Notes: slices.Clone(r.Notes)}
	var b bytes.Buffer
	b.WriteString(comment(head))
	writeNotes(&b, r.Notes)
	for _, s := range all {
		d.count(s, r.Missing)
		b.WriteByte('\n')
		s.write(&b)
		d.Notes = append(d.Notes, s.Notes...)
	}
	if err := r.Whole(); err != nil {
		return nil, fmt.Errorf("converting to a service file: %w", err)
	}
	slices.SortStableFunc(d.Notes, func(a, b reader.Note) int { return a.At.Compare(b.At) })
	d.TOML = b.Bytes()
	return d, j.reread(d)
}

// count counts a service that is no comment. One that serves nobody is noted.
func (d *Document) count(s *judged, missing string) {
	if len(s.faults) > 0 {
		return
	}
	d.Services++
	if s.Opens {
		d.Opened = append(d.Opened, s.Key.String())
	}
	if len(s.Endpoints) > 0 {
		d.Serving++
		return
	}
	s.Note(s.At, fmt.Sprintf("service %s has no endpoint: connections to it are refused", s.Key), cmp.Or(missing, "write its endpoints"))
}

// noteMode notes, once, that services want another mode than what the daemon may take.
func (j Judge) noteMode(r *reader.Result) {
	ipvs := configs.IPVSMode.Name
	wants := func(s *reader.Service) bool {
		return s.Forward.Answers() || s.Scheduler != "" && s.Scheduler != source.Maglev || s.OnePacket || slices.ContainsFunc(s.Endpoints, limited)
	}
	i := slices.IndexFunc(r.Services, wants)
	if i < 0 {
		return
	}
	at, what := reader.Position{File: r.Services[i].At.File}, "scheduler, direct and tunnel are for "+ipvs+" mode"
	switch hint := fmt.Sprintf("set mode = %q in svcproxy.toml", ipvs); {
	case j.Mode == configs.Auto:
		r.Note(at, what, hint+", or convert with --mode "+configs.NFTablesMode.Name)
	case j.Mode == ipvs && j.Written != ipvs:
		r.Note(at, what, hint+" before svcproxy starts: it refuses the file in another mode")
	}
}

// reread returns an error if the whole file, as it is, would be refused: if it is too large. A file of comments
// alone is refused in any case, so that it takes no services away where it replaces one that has some.
func (j Judge) reread(d *Document) error {
	if d.Services == 0 {
		return nil
	}
	_, faults := j.Rules.Parse("services.toml", d.TOML)
	if f := source.FirstError(faults); f != nil {
		return fmt.Errorf("converting to a service file: %s", f)
	}
	return nil
}

// judge reads a service as a file that has nothing else. What the mode cannot do of it is left out
// where it can be.
func (j Judge) judge(s *reader.Service) *judged {
	if j.Rules.Check != nil {
		for _, p := range j.Rules.Check(s.Service) {
			if !p.Warning {
				leaveOut(s, p)
			}
		}
	}
	out := &judged{Service: s}
	if !out.reads(j.Rules) && s.HealthCheck != nil { // perhaps it is the check alone
		first, check := out.faults[0], s.HealthCheck
		if s.HealthCheck = nil; out.reads(j.Rules) {
			s.Checks = append(s.Checks, check)
			s.Note(s.At, "the health check is a comment: "+first.Msg, cmp.Or(first.Hint, "correct it, and take the # away"))
		} else {
			s.HealthCheck = check
			out.reads(j.Rules)
		}
	}
	return out
}

// reads reads the text of a service, and reports whether it has no fault.
func (s *judged) reads(rules read.Rules) bool {
	s.text = serviceText(s.Service.Service, s.Named)
	services, faults := rules.Parse("service.toml", []byte(s.text))
	s.faults = slices.DeleteFunc(faults, func(f source.Fault) bool { return f.Warning })
	if len(s.faults) == 0 {
		s.Service.Service = services[0]
	}
	return len(s.faults) == 0
}

func limited(e source.Endpoint) bool { return e.MaxConnections > 0 }

// leaveOut leaves out what the mode cannot do, where a service is one without it.
func leaveOut(s *reader.Service, p source.Problem) {
	note := func(what string) { s.Note(s.At, fmt.Sprintf("%s is left out: %s", what, p.Msg), p.Hint) }
	switch p.Path.String() {
	case "scheduler":
		note("scheduler " + s.Scheduler)
		s.Scheduler, s.HashOn = "", source.NotHashed
	case "scheduler_flags": // goes with the scheduler
		s.SchedulerFlags = 0
	case "one_packet":
		note("one_packet")
		s.OnePacket = false
	default:
		if !strings.HasSuffix(p.Path.String(), ".max_connections") {
			return
		}
		note("max_connections")
		s.Endpoints = slices.Clone(s.Endpoints)
		for i := range s.Endpoints {
			s.Endpoints[i].MaxConnections, s.Endpoints[i].MinConnections = 0, 0
		}
	}
}

// refuse finds services that have something in common that only one may have: the first has it.
func (j Judge) refuse(all []*judged) {
	t := claims.NewTracker(j.Reserved)
	t.Limit(j.Rules.Limits.Products())
	var units []source.Unit
	for i, s := range all {
		if len(s.faults) == 0 {
			svc := *s.Service.Service
			svc.Pos, svc.Places = source.Position{File: s.At.File, Line: s.At.Line, Col: 1}, nil
			units = append(units, source.Unit{
				ID: source.UnitID{Source: file.Name, Name: strconv.Itoa(i)}, Since: int64(i + 1), Services: []*source.Service{&svc},
			})
		}
	}
	t.Apply(source.Changes{Set: units})
	for _, r := range t.Refusals() {
		if i, err := strconv.Atoi(r.Unit.Name); err == nil && i < len(all) {
			all[i].faults = r.Faults
		}
	}
}

// write writes a service with its notes, or as a comment.
func (s *judged) write(b *bytes.Buffer) {
	for _, f := range s.faults {
		hint := cmp.Or(f.Hint, "correct it, and take the comment signs away")
		s.Note(s.At, fmt.Sprintf("service %s is a comment: %s", s.Key, f.Msg), hint)
	}
	slices.SortStableFunc(s.Notes, func(a, b reader.Note) int { return a.At.Compare(b.At) })
	writeNotes(b, s.Notes)
	if len(s.faults) > 0 {
		b.WriteString(comment(s.text))
	} else {
		b.WriteString(s.text)
	}
	for _, c := range s.Checks {
		b.WriteString(comment("health_check = " + checkText(c)))
	}
}

// writeNotes writes notes as comments.
func writeNotes(b *bytes.Buffer, notes []reader.Note) {
	for _, n := range notes {
		b.WriteString(strings.TrimRight(comment(n.String()), "\n") + "\n")
	}
}
