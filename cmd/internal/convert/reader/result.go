package reader

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"svcproxy.dev/svcproxy/source"
)

// MaxSize is the most that is read of the input, with all files that it includes, in bytes.
const MaxSize = 16 << 20

const (
	maxNotes    = 10_000    // lines about what is not carried over
	MaxServices = 100_000   // as many as a service file may have
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

// A Position is a line of the input or of a file that it includes. Line 0 is the whole file.
type Position struct {
	File string
	Line int
}

func (p Position) String() string {
	if p.Line == 0 {
		return source.Quote(p.File)
	}
	return fmt.Sprintf("%s:%d", source.Quote(p.File), p.Line)
}

// Compare orders positions as they are read. Included files come by name.
func (p Position) Compare(o Position) int {
	return cmp.Or(cmp.Compare(p.File, o.File), cmp.Compare(p.Line, o.Line))
}

// ErrorAt returns an error about a position that ends the reading.
func ErrorAt(at Position, format string, args ...any) error {
	return fmt.Errorf("%s: %s", at, fmt.Sprintf(format, args...))
}

// A Note says what is not carried over, where it stands, and what to do.
type Note struct {
	At        Position
	Msg, Hint string
}

// String returns the note on one line that may go to a terminal.
func (n Note) String() string {
	text := n.At.String() + ": " + source.Printable(n.Msg)
	if n.Hint != "" {
		text += "; " + source.Printable(n.Hint)
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
	At    Position
	all   *Result
}

// ErrGrown ends the reading of a text that stands for too much.
var ErrGrown = errors.New("it stands for too many addresses, endpoints or words; split it")

// Grow counts what a text stands for.
func (r *Result) Grow(n int) error {
	if r.grown += n; n < 0 || r.grown > maxGrowth {
		return ErrGrown
	}
	return nil
}

// Note adds a note about what is part of no service. The same one at another position is left out.
func (r *Result) Note(at Position, msg, hint string) { r.addNote(&r.Notes, nil, Note{at, msg, hint}) }

// Note adds a note about a service. The same one at another position is left out.
func (s *Service) Note(at Position, msg, hint string) {
	s.all.addNote(&s.Notes, s, Note{at, msg, hint})
}

// A said is what has been noted of a service, or of none.
type said struct {
	of        *Service
	msg, hint string
}

func (r *Result) addNote(list *[]Note, of *Service, n Note) {
	key := said{of, n.Msg, n.Hint}
	if len(r.said) > maxNotes || r.said[key] {
		return
	}
	if r.said == nil {
		r.said = map[said]bool{}
	}
	if r.said[key] = true; len(r.said) > maxNotes {
		n = Note{At: n.At, Msg: fmt.Sprintf("there are more than %d notes: those that follow are left out", maxNotes)}
	}
	*list = append(*list, n)
}

// Add adds a service that begins at a position, by a name that is made fit and unique.
func (r *Result) Add(at Position, namespace, name string) *Service {
	s := &Service{At: at, all: r, Service: &source.Service{Key: source.Key{Namespace: namespace, Name: r.Unique(namespace, Label(name))}}}
	r.Services = append(r.Services, s)
	return s
}

// Unique returns a name, with a number behind it where there is one like it.
func (r *Result) Unique(namespace, name string) string {
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

// Label makes a DNS label of a text.
func Label(text string) string {
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
