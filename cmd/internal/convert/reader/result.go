package reader

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"iter"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/disk"
)

// MaxSize is the most that is read of the input, with all files that it includes, in bytes.
const MaxSize = 16 << 20

const (
	MaxNotes    = 200_000   // about what is not carried over
	MaxServices = 100_000   // as many as a service file may have
	maxGrowth   = 1_000_000 // endpoints, addresses and words that a short text may stand for, in all
)

// An Input is a text to convert.
type Input struct {
	Name string // of its file, in messages and to find what it includes; Stdin for standard input
	Data []byte
	ID   string // of the host, for lines of keepalived that are of one host only
}

// Lines yields the lines with their positions.
func (in Input) Lines() iter.Seq2[Position, string] {
	return func(yield func(Position, string) bool) {
		at := Position{File: in.Name}
		for line := range bytes.Lines(in.Data) {
			if at.Line++; !yield(at, string(bytes.TrimRight(line, "\r\n"))) {
				return
			}
		}
	}
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

// A failure is the error of an input that cannot be read at all.
type failure struct{ error }

// End ends the reading, however deep in blocks and files, with an error that Catch returns.
func End(err error) *Result { panic(failure{err}) }

// Fail ends the reading with an error about a position.
func Fail(at Position, format string, args ...any) {
	End(fmt.Errorf("%s: %s", at, fmt.Sprintf(format, args...)))
}

// Fail ends the reading with an error about what is read now.
func (r *Result) Fail(format string, args ...any) { Fail(r.At, format, args...) }

// Catch is deferred by who begins to read. It sets the error of Fail.
func Catch(err *error) {
	switch v := recover().(type) {
	case nil:
	case failure:
		*err = v.error
	default:
		panic(v)
	}
}

// A Note says what is not carried over, where it stands, and what to do.
type Note struct {
	At        Position
	Msg, Hint string
	also      []int // the first other lines with the same
	more      int   // how many there are beyond those
	last      int   // the last of them
}

// String returns the note on one line that may go to a terminal.
func (n Note) String() string {
	text := n.At.String() + ": " + source.Printable(n.Msg)
	lines := strings.Fields(strings.Trim(fmt.Sprint(n.also), "[]"))
	if n.more > 0 {
		lines = append(lines, fmt.Sprintf("%d more", n.more))
	}
	switch last := len(lines) - 1; {
	case last == 0:
		text += " (also line " + lines[0] + ")"
	case last > 0:
		text += " (also lines " + strings.Join(lines[:last], ", ") + " and " + lines[last] + ")"
	}
	if n.Hint != "" {
		text += "; " + source.Printable(n.Hint)
	}
	return text
}

// maxAlso is how many other lines a note names. It counts the rest.
const maxAlso = 10

// A Result is what was read.
type Result struct {
	Services []*Service
	Notes    []Note   // about what is part of no service
	Missing  string   // what to do about a service without endpoints; empty: write them
	At       Position // of what is read now, and may stand for too much
	names    map[string]int
	said     map[said]int
	grown    int // of maxGrowth
	unsaid   int // notes beyond MaxNotes
	included int // bytes of files that the input includes

	check    *source.HealthCheck    // that a service got last
	placesOf *Service               // that got the last endpoint
	places   map[netip.AddrPort]int // of its endpoints, by the line that they are written at
	families map[bool]bool          // of its addresses: whether they are IPv4
}

// A Service is one service as it was read.
type Service struct {
	*source.Service
	Notes  []Note
	At     Position
	Asked  []Position            // where HealthCheck is written
	Checks []*source.HealthCheck // that cannot hold for all endpoints: comments
	Named  []Named               // comments, too
	Opens  bool                  // it lets in sources that were kept out, as a note says
	all    *Result
}

// NewResult returns an empty one of an input that may include files.
func NewResult(in Input) *Result { return &Result{included: len(in.Data)} }

// Grow counts what a text stands for, and ends the reading where it is too much.
func (r *Result) Grow(n int) {
	if r.grown += n; n < 0 || r.grown > maxGrowth {
		r.Fail("it stands for too many addresses, endpoints or words; split it")
	}
}

// Note adds a note about something outside of services. A repeated note adds its line to the first one.
func (r *Result) Note(at Position, msg, hint string) {
	r.addNote(&r.Notes, said{nil, at.File, msg, hint}, at)
}

// Note adds a note about the service. A repeated note adds its line to the first one.
func (s *Service) Note(at Position, msg, hint string) {
	s.all.addNote(&s.Notes, said{s, at.File, msg, hint}, at)
}

// A said is what has been noted of a service, or of none.
type said struct {
	of              *Service
	file, msg, hint string
}

func (r *Result) addNote(list *[]Note, key said, at Position) {
	i, known := r.said[key]
	if !known {
		if len(r.said) == MaxNotes {
			r.unsaid++
			return
		}
		if r.said == nil {
			r.said = map[said]int{}
		}
		r.said[key] = len(*list)
		*list = append(*list, Note{At: at, Msg: key.msg, Hint: key.hint, last: at.Line})
		return
	}
	n := &(*list)[i]
	switch {
	case at.Line == n.At.Line || at.Line == n.last || slices.Contains(n.also, at.Line):
	case len(n.also) < maxAlso:
		n.also = append(n.also, at.Line)
	default:
		n.more++
	}
	n.last = at.Line
}

// Whole reports whether every note was kept: none may be lost silently.
func (r *Result) Whole() bool { return r.unsaid == 0 }

// ErrIncluded is returned when the input and its includes together exceed MaxSize.
var ErrIncluded = fmt.Errorf("all files together have more than %d bytes", MaxSize)

// Include reads a file that the input names. A relative name is resolved against dir.
func (r *Result) Include(dir, name string) ([]byte, error) {
	if !filepath.IsAbs(name) {
		name = filepath.Join(dir, name)
	}
	f, _, err := disk.Open(name)
	if err != nil {
		return nil, fmt.Errorf("reading an included file: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, int64(MaxSize-r.included)+1))
	if r.included += len(data); err == nil && r.included > MaxSize {
		return nil, ErrIncluded
	}
	return data, err
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
