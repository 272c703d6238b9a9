// Package convert makes a service file of what another program has: the
// configuration of keepalived or HAProxy, what ipvsadm-save or iptables-save
// print, objects of Kubernetes, or the state file of Cilium.
//
//	text ──► a format's reader ──► Result ──► Judge ──► TOML and notes
//
// A reader makes services of the project's own model and a Note, with its position, of
// everything that it cannot carry over. The Judge holds each service to what
// service files are held to; one that would be refused is printed as a comment, with the fault.
// All input is hostile: bounded in size, in nesting and in what it grows to.
package convert

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/decode"
)

// MaxSize is the most that is read of the input, with all files that it includes, in bytes.
const MaxSize = 16 << 20

const (
	maxNotes    = 10_000    // lines about what is not carried over
	maxServices = 100_000   // as many as a service file may have
	maxGrowth   = 1_000_000 // endpoints, addresses and words that a short text may stand for, in all
)

// An Input is a text to convert.
type Input struct {
	Name string // of its file, in messages and to find what it includes; Stdin for standard input
	Data []byte
	ID   string // of the host, for lines of keepalived that are of one host only
}

// Stdin is the name of standard input in messages.
const Stdin = "<stdin>"

// A Format is a program whose configuration can be converted.
type Format struct {
	Name string
	Of   string // what FILE is, for people
	read func(Input) (*Result, error)
}

// Formats are all of them, in the order of the documentation.
var Formats = []Format{
	{"keepalived", "keepalived.conf, with what it includes", readKeepalived},
	{"ipvsadm", "what ipvsadm-save or ipvsadm -Sn prints", readIPVSAdm},
	{"iptables", "what iptables-save or ip6tables-save prints: kube-proxy's rules, Docker's, your own DNAT", readIPTables},
	{"haproxy", "haproxy.cfg, of which sections of mode tcp are read", readHAProxy},
	{"kubernetes", "Services with EndpointSlices or Endpoints, of YAML or JSON", readKubernetes},
	{"cilium", "the file of --lb-state-file of Cilium's load balancer", readCilium},
}

// Named returns the format of a name.
func Named(name string) (Format, error) {
	for _, f := range Formats {
		if f.Name == name {
			return f, nil
		}
	}
	return Format{}, fmt.Errorf("unknown format %s; %s", source.Excerpt(name), decode.WantWord(name, Names()))
}

// Names returns the names of all formats.
func Names() (names []string) {
	for _, f := range Formats {
		names = append(names, f.Name)
	}
	return names
}

// Read reads an input. The error says, with its position, why it cannot be read at all.
func (f Format) Read(in Input) (*Result, error) {
	if len(in.Data) > MaxSize {
		return nil, fmt.Errorf("%s: it has more than %d bytes", source.Quote(in.Name), MaxSize)
	}
	r, err := f.read(in)
	if err != nil {
		return nil, err
	}
	if len(r.Services) > maxServices {
		return nil, fmt.Errorf("%s: it has more than %d services; split it", source.Quote(in.Name), maxServices)
	}
	return r, nil
}

// A position is a line of the input or of a file that it includes. Line 0 is the whole file.
type position struct {
	file string
	line int
}

func (p position) String() string {
	if p.line == 0 {
		return source.Quote(p.file)
	}
	return fmt.Sprintf("%s:%d", source.Quote(p.file), p.line)
}

// compare orders positions as they are read. Included files come by name.
func (p position) compare(o position) int {
	return cmp.Or(cmp.Compare(p.file, o.file), cmp.Compare(p.line, o.line))
}

// errorAt returns an error about a position that ends the reading.
func errorAt(at position, format string, args ...any) error {
	return fmt.Errorf("%s: %s", at, fmt.Sprintf(format, args...))
}

// A Note says what is not carried over, where it stands, and what to do.
type Note struct {
	at        position
	msg, hint string
}

// String returns the note on one line that may go to a terminal.
func (n Note) String() string {
	text := n.at.String() + ": " + source.Printable(n.msg)
	if n.hint != "" {
		text += "; " + source.Printable(n.hint)
	}
	return text
}

// A Result is what was read.
type Result struct {
	Services []*Service
	Notes    []Note // about what is part of no service
	names    map[string]int
	said     map[said]bool
	grown    int // of maxGrowth
}

// A Service is one service as it was read.
type Service struct {
	*source.Service
	Notes []Note
	at    position
	all   *Result
	pools poolIndex // of rules
}

// errGrown ends the reading of a text that stands for too much.
var errGrown = errors.New("it stands for too many addresses, endpoints or words; split it")

// grow counts what a text stands for.
func (r *Result) grow(n int) error {
	if r.grown += n; n < 0 || r.grown > maxGrowth {
		return errGrown
	}
	return nil
}

// note adds a note about what is part of no service. The same one at another position is left out.
func (r *Result) note(at position, msg, hint string) { r.add(&r.Notes, nil, Note{at, msg, hint}) }

// note adds a note about a service. The same one at another position is left out.
func (s *Service) note(at position, msg, hint string) { s.all.add(&s.Notes, s, Note{at, msg, hint}) }

// A said is what has been noted of a service, or of none.
type said struct {
	of        *Service
	msg, hint string
}

func (r *Result) add(list *[]Note, of *Service, n Note) {
	key := said{of, n.msg, n.hint}
	if len(r.said) > maxNotes || r.said[key] {
		return
	}
	if r.said == nil {
		r.said = map[said]bool{}
	}
	if r.said[key] = true; len(r.said) > maxNotes {
		n = Note{at: n.at, msg: fmt.Sprintf("there are more than %d notes: those that follow are left out", maxNotes)}
	}
	*list = append(*list, n)
}

// service adds a service that begins at a position, by a name that is made fit and unique.
func (r *Result) service(at position, namespace, name string) *Service {
	s := &Service{at: at, all: r, Service: &source.Service{Key: source.Key{Namespace: namespace, Name: r.unique(namespace, label(name))}}}
	r.Services = append(r.Services, s)
	return s
}

// unique returns a name, with a number behind it where there is one like it.
func (r *Result) unique(namespace, name string) string {
	if r.names == nil {
		r.names = map[string]int{}
	}
	for {
		r.names[namespace+"/"+name]++
		n := r.names[namespace+"/"+name]
		if n == 1 {
			return name
		}
		tail := fmt.Sprintf("-%d", n)
		next := strings.TrimRight(name[:min(len(name), 63-len(tail))], "-") + tail
		if r.names[namespace+"/"+next] == 0 {
			r.names[namespace+"/"+next]++
			return next
		}
	}
}

// label makes a DNS label of a text.
func label(text string) string {
	out := strings.Map(func(c rune) rune {
		switch {
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9':
			return c
		case c >= 'A' && c <= 'Z':
			return c - 'A' + 'a'
		}
		return '-'
	}, text)
	out = strings.Trim(out[:min(len(out), 63)], "-")
	return cmp.Or(out, "service")
}
