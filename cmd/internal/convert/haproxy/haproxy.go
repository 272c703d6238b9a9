package haproxy

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"svcproxy.dev/svcproxy/cmd/internal/convert/reader"
	"svcproxy.dev/svcproxy/source"
)

// Read reads a configuration of HAProxy, as far as it is about connections: sections of mode
// tcp.
func Read(in reader.Input) (*reader.Result, error) {
	h := haproxy{Result: reader.NewResult(in), in: in, files: map[string]sourceFile{}, backends: map[string]*section{}, defaults: map[string]*section{}}
	if err := h.sections(in); err != nil {
		return nil, err
	}
	for i, s := range h.fronts {
		if err := h.front(s); err != nil {
			return nil, reader.ErrorAt(s.at, "%s", err)
		}
		h.fronts[i] = nil // a large file has many, which nothing needs any more
	}
	for _, s := range h.order {
		if err := h.Grow(s.size()); err != nil {
			return nil, reader.ErrorAt(s.at, "%s", err)
		}
		if !s.used && !h.otherMode(s, "") {
			h.Note(s.at, s.title()+" is left out: no frontend has it as its default_backend", "")
		}
	}
	return h.Result, nil
}

type haproxy struct {
	*reader.Result
	in       reader.Input
	files    map[string]sourceFile
	fronts   []*section // listen and frontend
	order    []*section // backends
	backends map[string]*section
	defaults map[string]*section
}

// A section is a header and the lines below it.
type section struct {
	kind, name string
	at         reader.Position
	lines      []configLine
	defaults   *section   // nil: none
	hidden     configLine // .if, where rules about access are behind it
	used       bool       // by a service; of defaults, that lines which are left out have been noted
}

// title names a section in messages.
func (s *section) title() string { return s.kind + " " + source.Excerpt(s.name) }

type configLine struct {
	at reader.Position
	reader.Words
	size int // 1, and more where the line is long
}

// is reports whether a line begins with these words.
func (l configLine) is(words ...string) bool {
	return len(l.Words) >= len(words) && slices.Equal(l.Words[:len(words)], words)
}

// last returns the last line that begins with these words, of the section, else of its defaults.
func (s *section) last(words ...string) (configLine, bool) {
	for ; s != nil; s = s.defaults {
		for _, l := range slices.Backward(s.lines) {
			if l.is(words...) {
				return l, true
			}
		}
	}
	return configLine{}, false
}

// all returns the lines that begin with these words, those of defaults first.
func (s *section) all(words ...string) []configLine {
	if s == nil {
		return nil
	}
	return append(s.defaults.all(words...), s.own(words...)...)
}

// own returns the lines of the section itself that begin with these words.
func (s *section) own(words ...string) (list []configLine) {
	for _, l := range s.lines {
		if l.is(words...) {
			list = append(list, l)
		}
	}
	return list
}

// size returns how much there is to look through, with all that is default: lines, of which a long one
// counts as several.
func (s *section) size() (n int) {
	for ; s != nil; s = s.defaults {
		n++
		for _, l := range s.lines {
			n += l.size
		}
	}
	return n
}

// nearest returns the lines that begin with a word, of the section, else of the next defaults that have one.
func (s *section) nearest(word string) (list []configLine) {
	for ; s != nil && list == nil; s = s.defaults {
		list = s.own(word)
	}
	return list
}

func (s *section) mode() string {
	l, _ := s.last("mode")
	return cmp.Or(l.Arg(1), "tcp")
}

// sectionWords begin a section.
var sectionWords = []string{"global", "defaults", "listen", "frontend", "backend", "userlist", "peers", "resolvers", "mailers", "program", "cache", "ring",
	"http-errors", "fcgi-app", "log-forward", "crt-store", "traces", "acme", "log-profile"}

// formerly are former words for timeouts.
var formerly = map[string]string{"contimeout": "connect", "clitimeout": "client", "srvtimeout": "server"}

// maxSections bounds the sections of a configuration: a frontend and a backend of each of 20,000 services, and others.
const maxSections = 50_000

// sections splits the text.
func (h *haproxy) sections(in reader.Input) error {
	var current, standard *section
	var condition conditional
	sections := 0
	for at, line := range in.Lines() {
		words, err := reader.OfHAProxy.Split(line)
		switch {
		case err != nil:
			return reader.ErrorAt(at, "%s", err)
		case len(words) == 0:
		case words[0] == ".if" || condition.depth > 0:
			h.conditional(&condition, current, configLine{at: at, Words: words})
		case strings.HasPrefix(words[0], "."): // .notice and the like print something
		case slices.Contains(sectionWords, words[0]):
			if sections++; sections > maxSections {
				return reader.ErrorAt(at, "there are more than %d sections", maxSections)
			}
			current = &section{kind: words[0], at: at, defaults: standard}
			if len(words) > 1 {
				current.name = words[1]
			}
			standard = h.begin(current, words, standard)
		case current == nil:
			return reader.ErrorAt(at, "%s is in no section", source.Excerpt(words[0]))
		case current.kind == "global" && words[0] == "maxconn":
			h.Note(at, source.Excerpt(strings.Join(words, " "))+" of global is left out", hints["maxconn"])
		default:
			if now := formerly[words[0]]; now != "" {
				words = append([]string{"timeout", now}, words[1:]...)
			}
			current.lines = append(current.lines, configLine{at, words, 1 + len(line)/64})
		}
	}
	return nil
}

// A conditional is the lines from an .if to its .endif.
type conditional struct {
	begins configLine
	depth  int
}

// conditional skips the lines from .if to .endif, because nothing here says whether they apply.
func (h *haproxy) conditional(c *conditional, in *section, l configLine) {
	switch l.Words[0] {
	case ".if":
		if c.depth++; c.depth == 1 {
			c.begins = l
		}
	case ".endif":
		if c.depth--; c.depth == 0 {
			h.Note(c.begins.at, fmt.Sprintf("%s is left out, with the lines up to %d: it is not known whether it holds", source.Excerpt(strings.Join(c.begins.Words, " ")), l.at.Line),
				"write the lines that hold without it")
		}
	case "tcp-request", "tcp-response", "use_backend":
		if in != nil {
			in.hidden = c.begins
		}
	case "acl":
		if in != nil { // it may hold for anything
			in.lines = append(in.lines, configLine{l.at, l.Words[:min(2, len(l.Words))], 1})
		}
	}
}

// begin takes up a section, and returns what is default from it on.
func (h *haproxy) begin(s *section, words []string, standard *section) *section {
	from := slices.Index(words, "from")
	if from >= 0 && from+1 < len(words) {
		s.defaults = h.defaults[words[from+1]]
	}
	switch s.kind {
	case "defaults":
		if from < 0 {
			s.defaults = nil
		}
		h.defaults[s.name] = s
		return s
	case "listen", "frontend":
		if len(words) > 2 && from < 0 { // as before version 1.8: listen NAME ADDRESS
			s.lines = append(s.lines, configLine{s.at, append([]string{"bind"}, words[2:]...), 1})
		}
		h.fronts = append(h.fronts, s)
	case "backend":
		h.backends[s.name] = s
		h.order = append(h.order, s)
	case "global":
	default:
		h.Note(s.at, s.title()+" is left out: it is no service", "")
	}
	return standard
}

// otherMode notes a section of another mode than tcp.
func (h *haproxy) otherMode(s *section, hint string) bool {
	mode := s.mode()
	if mode != "tcp" {
		h.Note(s.at, fmt.Sprintf("%s of mode %s is left out: svcproxy balances connections, not requests", s.title(), source.Excerpt(mode)), hint)
	}
	return mode != "tcp"
}

// front makes services of a listen or frontend section.
func (h *haproxy) front(s *section) error {
	if err := h.Grow(s.size()); err != nil {
		return err
	}
	l, found := s.last("default_backend")
	back := h.backends[l.Arg(1)]
	if s.kind == "listen" && !found {
		back = s
	}
	if back != nil {
		back.used = true
	}
	if h.otherMode(s, "keep HAProxy for it, as an endpoint if you like") {
		return nil
	}
	switch {
	case back != nil:
	case found:
		h.Note(l.at, s.title()+" is left out: there is no backend "+source.Excerpt(l.Arg(1)), "")
		return nil
	default:
		h.Note(s.at, s.title()+" is left out: it has no default_backend", "")
		return nil
	}
	fronts, err := h.binds(s)
	if err != nil {
		return err
	}
	if len(fronts) == 0 {
		h.Note(s.at, s.title()+" is left out: it has no bind to an address that can be carried over", "")
	}
	who, err := h.sources(s, back)
	if err != nil {
		return err
	}
	if err := h.Grow(len(fronts) * (s.size() + back.size() + len(who.may))); err != nil {
		return err
	}
	h.noteDefaults(s, who.taken)
	h.noteDefaults(back, who.taken)
	servers := len(back.own("server"))
	for i, f := range fronts {
		name := s.name
		if len(fronts) > 1 {
			name = fmt.Sprintf("%s-%d", reader.Label(name), i+1)
		}
		if err := h.Grow(len(f.ports) * (1 + servers)); err != nil {
			return err
		}
		fill(h.Add(s.at, "default", name), s, back, f, who)
	}
	return nil
}

// fill fills a service in.
func fill(s *reader.Service, front, back *section, f bindGroup, who sources) {
	s.VIPs = f.addrs
	if !who.may.Equal(reader.AllAddrs) {
		if s.SourceRanges = who.may.Prefixes(); len(s.SourceRanges) == 0 {
			s.SourceRanges = []netip.Prefix{reader.NoSource}
		}
	}
	if l := who.opens; l.Words != nil {
		s.Opens = true
		to := "all sources"
		if s.SourceRanges != nil {
			to = "all of source_ranges"
		}
		s.Note(l.at, "the service is open to "+to+" now: "+source.Excerpt(strings.Join(l.Words, " "))+" keeps sources out in a way that is not carried over", "write source_ranges")
	}
	for _, n := range f.ports {
		p := source.Port{Protocol: source.TCP, Port: n, TargetPort: n}
		if len(f.ports) > 1 {
			p.Name = "port-" + strconv.Itoa(int(n))
		}
		if f.addrs == nil {
			p.NodePort = n
		}
		s.Ports = append(s.Ports, p)
	}
	if f.addrs == nil {
		s.Note(front.at, "a bind to all addresses is a node port, on the addresses of node_port_addresses", "set it in svcproxy.toml, or write vips in place of node_port")
	}
	addBalance(s, back)
	addServers(s, back)
	noteLeftOut(s, front, who.taken)
	if back != front {
		noteLeftOut(s, back, who.taken)
	}
}
