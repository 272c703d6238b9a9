package haproxy

import (
	"fmt"
	"slices"
	"strings"

	"svcproxy.dev/svcproxy/cmd/internal/convert/reader"
	"svcproxy.dev/svcproxy/source"
)

type haproxy struct {
	*reader.Result
	in       reader.Input
	files    map[string]sourceFile
	count    int        // of sections
	fronts   []*section // listen and frontend
	order    []*section // backends
	backends map[string]*section
	defaults map[string]*section
	standard *section    // the last defaults
	begins   reader.Line // .if, of which the lines are read
	depth    int         // of .if in each other
}

// A section is a header and the lines below it.
type section struct {
	kind, name string
	at         reader.Position
	lines      []reader.Line
	length     int         // of the lines; a long one counts as several
	defaults   *section    // nil: none
	hidden     reader.Line // .if, where rules about access are behind it, or the section itself, where its defaults are not known
	used       bool        // by a service; of defaults, that lines which are left out have been noted
}

// title names a section in messages.
func (s *section) title() string { return s.kind + " " + source.Excerpt(s.name) }

// add adds a line of a length in bytes.
func (s *section) add(l reader.Line, length int) {
	s.lines = append(s.lines, l)
	s.length += 1 + length/64
}

// last returns the last line that begins with these words, of the section, else of its defaults.
func (s *section) last(words ...string) (reader.Line, bool) {
	return s.lastOf(func(l reader.Line) bool { return l.Is(words...) })
}

func (s *section) lastOf(is func(reader.Line) bool) (reader.Line, bool) {
	for ; s != nil; s = s.defaults {
		for _, l := range slices.Backward(s.lines) {
			if is(l) {
				return l, true
			}
		}
	}
	return reader.Line{}, false
}

// all returns the lines that begin with a word, those of defaults first.
func (s *section) all(word string) []reader.Line {
	if s == nil {
		return nil
	}
	return append(s.defaults.all(word), s.own(word)...)
}

// own returns the lines of the section itself that begin with a word.
func (s *section) own(word string) (list []reader.Line) {
	for _, l := range s.lines {
		if l.Is(word) {
			list = append(list, l)
		}
	}
	return list
}

// nearest returns the lines that begin with a word, of the section, else of the next defaults that have one.
func (s *section) nearest(word string) (list []reader.Line) {
	for ; s != nil && list == nil; s = s.defaults {
		list = s.own(word)
	}
	return list
}

// size returns how much there is to look through, with all that is default.
func (s *section) size() (n int) {
	for ; s != nil; s = s.defaults {
		n += 1 + s.length
	}
	return n
}

// sectionWords begin a section.
var sectionWords = reader.WordSet(`global defaults listen frontend backend userlist peers resolvers mailers program cache ring http-errors fcgi-app
	log-forward crt-store traces acme log-profile`)

// formerly are former words for timeouts.
var formerly = map[string]string{"contimeout": "connect", "clitimeout": "client", "srvtimeout": "server"}

// maxSections bounds the sections of a configuration: a frontend and a backend of each of 20,000 services, and others.
const maxSections = 50_000

// sections splits the text.
func (h *haproxy) sections() {
	var current *section
	for at, line := range h.in.Lines() {
		words, err := reader.OfHAProxy.Split(line)
		l := reader.Line{At: at, Words: words}
		switch {
		case err != nil:
			reader.Fail(at, "%s", err)
		case len(words) == 0:
		case words[0] == ".if" || h.depth > 0:
			h.conditional(current, l)
		case strings.HasPrefix(words[0], "."): // .notice and the like print something
		case sectionWords[words[0]]:
			if h.count++; h.count > maxSections {
				reader.Fail(at, "there are more than %d sections", maxSections)
			}
			current = h.begin(l)
		case current == nil:
			reader.Fail(at, "%s is in no section", source.Excerpt(words[0]))
		case current.kind == "global" && words[0] == "maxconn":
			h.Note(at, l.Text(0)+" of global is left out", hints["maxconn"])
		default:
			if now := formerly[words[0]]; now != "" {
				l.Words = append([]string{"timeout", now}, words[1:]...)
			}
			current.add(l, len(line))
		}
	}
}

// conditional skips the lines from .if to .endif, because nothing here says whether they apply.
func (h *haproxy) conditional(in *section, l reader.Line) {
	switch l.Words[0] {
	case ".if":
		if h.depth++; h.depth == 1 {
			h.begins = l
		}
	case ".endif":
		if h.depth--; h.depth == 0 {
			h.Note(h.begins.At, fmt.Sprintf("%s is left out, with the lines up to %d: it is not known whether it holds", h.begins.Text(0), l.At.Line),
				"write the lines that hold without it")
		}
	case "tcp-request", "tcp-response", "use_backend":
		if in != nil {
			in.hidden = h.begins
		}
	case "acl":
		if in != nil { // it may hold for anything
			in.add(reader.Line{At: l.At, Words: l.Words[:min(2, len(l.Words))]}, 0)
		}
	}
}

// begin takes up a section.
func (h *haproxy) begin(l reader.Line) *section {
	s := &section{kind: l.Arg(0), name: l.Arg(1), at: l.At, defaults: h.standard}
	from := slices.Index(l.Words, "from")
	if from >= 0 && from+1 < len(l.Words) {
		if s.defaults = h.defaults[l.Words[from+1]]; s.defaults == nil {
			h.Note(l.At, "there is no defaults section "+source.Excerpt(l.Words[from+1])+" for "+s.title(), "convert all files as one")
			s.hidden = l
		}
	}
	switch s.kind {
	case "defaults":
		if from < 0 {
			s.defaults = nil
		}
		h.defaults[s.name], h.standard = s, s
	case "listen", "frontend":
		if len(l.Words) > 2 && from < 0 { // as before version 1.8: listen NAME ADDRESS
			s.add(reader.Line{At: l.At, Words: append([]string{"bind"}, l.Words[2:]...)}, 0)
		}
		h.fronts = append(h.fronts, s)
	case "backend":
		h.backends[s.name] = s
		h.order = append(h.order, s)
	case "global":
	default:
		h.Note(s.at, s.title()+" is left out: it is no service", "")
	}
	return s
}
