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
		if j.Rules.Check != nil {
			for _, p := range j.Rules.Check(s.Service) {
				if !p.Warning {
					leaveOut(s, p)
				}
			}
		}
		all[i] = &judged{Service: s, text: serviceText(s.Service, s.Named)}
	}
	j.judge(all)
	for _, s := range all {
		if len(s.faults) == 0 && len(s.Endpoints) == 0 { // written, it would refuse connections
			s.faults = []source.Fault{{Msg: "it has no endpoint", Hint: cmp.Or(r.Missing, "write its endpoints, and take the comment signs away")}}
		}
	}
	j.refuse(all)
	d := &Document{Notes: r.Notes}
	size := 0
	for _, s := range all {
		for _, f := range s.faults {
			hint := cmp.Or(f.Hint, "correct it, and take the comment signs away")
			s.Note(s.At, fmt.Sprintf("service %s is a comment: %s", s.Key, f.Msg), hint)
		}
		if len(s.faults) == 0 {
			d.Services++
			if s.Opens {
				d.Opened = append(d.Opened, s.Key.String())
			}
		}
		d.Notes = append(d.Notes, s.Notes...)
		size += len(s.text) + 256*len(s.Notes)
	}
	if !r.Whole() {
		return nil, fmt.Errorf("converting to a service file: there is more to say of it than %d lines; split it", reader.MaxNotes)
	}
	var b bytes.Buffer
	b.Grow(size)
	b.WriteString(comment(head))
	if d.Services == 0 {
		b.WriteString("# No service was found. svcproxy refuses this file, so that it removes no services where it replaces another one.\n")
	}
	if len(d.Notes) > maxComments {
		b.WriteString(comment(fmt.Sprintf("What is left out has %d lines, which convert prints on standard error alone.", len(d.Notes))))
	}
	d.writeNotes(&b, r.Notes)
	for _, s := range all {
		b.WriteByte('\n')
		d.writeNotes(&b, s.Notes)
		if len(s.faults) > 0 {
			s.text = comment(s.text)
		}
		b.WriteString(s.text)
		s.text = "" // all of it takes much
		for _, c := range s.Checks {
			b.WriteString(comment("health_check = " + checkText(c)))
		}
	}
	sortNotes(d.Notes)
	d.TOML = b.Bytes()
	return d, j.fits(d)
}

// maxComments is the number of notes that a file repeats as comments. More would take up more of the file than its services.
const maxComments = 20_000

// writeNotes writes notes as comments, in the order of their positions.
func (d *Document) writeNotes(b *bytes.Buffer, notes []reader.Note) {
	sortNotes(notes)
	for _, n := range notes {
		if len(d.Notes) <= maxComments {
			b.WriteString("# " + n.String() + "\n")
		}
	}
}

func sortNotes(notes []reader.Note) {
	slices.SortStableFunc(notes, func(a, b reader.Note) int { return a.At.Compare(b.At) })
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

// fits returns an error if the file is too large as a whole.
func (j Judge) fits(d *Document) error {
	if most := cmp.Or(j.Rules.Limits.Services, read.DefaultLimits.Services); d.Services > most {
		return fmt.Errorf("converting to a service file: it has %d services, more than %d; split it, or raise services in [limits] of svcproxy.toml", d.Services, most)
	}
	if most := j.Rules.MaxSize(); len(d.TOML) > most {
		return fmt.Errorf("converting to a service file: the file has more than %d bytes; split it, or raise file_size in [limits] of svcproxy.toml", most)
	}
	return nil
}

// judge finds the services that have a fault. It reads a hundred at a time, which takes less memory than all at once, and
// reads them one by one only where the hundred have a fault.
func (j Judge) judge(all []*judged) {
	for some := range slices.Chunk(all, 100) {
		var b bytes.Buffer
		for _, s := range some {
			b.WriteString(s.text)
		}
		if _, faults := j.Rules.Parse("services.toml", b.Bytes()); source.FirstError(faults) == nil {
			continue
		}
		for _, s := range some {
			if !j.reads(s) && s.HealthCheck != nil {
				j.withoutCheck(s)
			}
		}
	}
}

// withoutCheck makes the check of a service a comment where only that is at fault.
func (j Judge) withoutCheck(s *judged) {
	check, text, faults := s.HealthCheck, s.text, s.faults
	s.HealthCheck = nil
	if s.text = serviceText(s.Service.Service, s.Named); !j.reads(s) {
		s.HealthCheck, s.text, s.faults = check, text, faults
		return
	}
	s.Checks = append(s.Checks, check)
	for _, at := range s.Asked {
		s.Note(at, "the health check is a comment: "+faults[0].Msg, cmp.Or(faults[0].Hint, "correct it, and take the # away"))
	}
}

// reads reports whether the text of a service can be read without a fault.
func (j Judge) reads(s *judged) bool {
	_, faults := j.Rules.Parse("service.toml", []byte(s.text))
	s.faults = slices.DeleteFunc(faults, func(f source.Fault) bool { return f.Warning })
	return len(s.faults) == 0
}

func limited(e source.Endpoint) bool { return e.Extras().MaxConnections > 0 }

// leaveOut leaves out what the mode cannot do, where a service is one without it.
func leaveOut(s *reader.Service, p source.Problem) {
	note := func(what string) { s.Note(s.At, fmt.Sprintf("%s is left out: %s", what, p.Msg), p.Hint) }
	switch p.Path.String() {
	case "scheduler":
		if slices.Contains([]string{"sh", "mh", source.Maglev}, s.Scheduler) && s.Affinity == 0 {
			p.Hint = `session_affinity = "client_ip" keeps clients on their endpoint too; scheduler maglev does in nftables mode`
		}
		note("scheduler " + s.Scheduler)
		for range (&configs.Settings{}).Warn(s.Service, configs.IPVSMode.Name) { // weights differ
			s.Note(s.At, "the weights of endpoints count, and scheduler "+s.Scheduler+" gave them no heed", "write the same weight for all")
		}
		if slices.Contains([]string{"fo", "ovf"}, s.Scheduler) && slices.ContainsFunc(s.Endpoints, func(e source.Endpoint) bool { return e.Weight != s.Endpoints[0].Weight }) {
			s.Note(s.At, "scheduler "+s.Scheduler+" gave the endpoint with the highest weight all connections, and all get some now", "write tier = 1, and higher ones, for those that are to wait")
		}
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
			more := s.Endpoints[i].Extras()
			more.MaxConnections, more.MinConnections = 0, 0
			s.Endpoints[i] = s.Endpoints[i].With(more)
		}
	}
}

// refuse finds services that claim what a service before them has, and those that exceed the limits of a file.
func (j Judge) refuse(all []*judged) {
	t := claims.NewTracker(j.Reserved)
	t.Limit(j.Rules.Limits.Products())
	units := make([]source.Unit, 0, len(all))
	for i, s := range all {
		if len(s.faults) == 0 {
			s.Pos, s.Places = source.Position{File: s.At.File, Line: s.At.Line, Col: 1}, nil
			units = append(units, source.Unit{
				ID: source.UnitID{Source: file.Name, Name: strconv.Itoa(i)}, Since: int64(i + 1), Services: []*source.Service{s.Service.Service},
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
