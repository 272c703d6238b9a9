package haproxy

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	"svcproxy.dev/svcproxy/cmd/internal/convert/reader"
	"svcproxy.dev/svcproxy/source"
)

// Read reads a configuration of HAProxy, as far as it is about connections: sections of mode
// tcp.
func Read(in reader.Input) *reader.Result {
	h := haproxy{Result: reader.NewResult(in), in: in, files: map[string]sourceFile{}, backends: map[string]*section{}, defaults: map[string]*section{}}
	h.sections()
	for i, s := range h.fronts {
		h.At = s.at
		h.front(s)
		h.fronts[i] = nil // a large file has many, which nothing needs any more
	}
	for _, s := range h.order {
		h.At = s.at
		h.Grow(s.size())
		if !s.used && !h.otherMode(s, "") {
			h.Note(s.at, s.title()+" is left out: no frontend has it as its default_backend", "")
		}
	}
	return h.Result
}

// otherMode notes a section of another mode than tcp.
func (h *haproxy) otherMode(s *section, hint string) bool {
	l, _ := s.last("mode")
	mode := cmp.Or(l.Arg(1), "tcp")
	if mode != "tcp" {
		h.Note(s.at, fmt.Sprintf("%s of mode %s is left out: svcproxy balances connections, not requests", s.title(), source.Excerpt(mode)), hint)
	}
	return mode != "tcp"
}

// front makes services of a listen or frontend section.
func (h *haproxy) front(s *section) {
	h.Grow(s.size())
	l, found := s.last("default_backend")
	back := h.backends[l.Arg(1)]
	if s.kind == "listen" && !found {
		back = s
	}
	if back != nil {
		back.used = true
	}
	switch {
	case h.otherMode(s, "keep HAProxy for it, as an endpoint if you like"):
		return
	case back == nil && found:
		h.Note(l.At, s.title()+" is left out: there is no backend "+source.Excerpt(l.Arg(1)), "")
		return
	case back == nil:
		h.Note(s.at, s.title()+" is left out: it has no default_backend", "")
		return
	}
	fronts := h.binds(s)
	if len(fronts) == 0 {
		h.Note(s.at, s.title()+" is left out: it has no bind to an address that can be carried over", "")
	}
	who := h.sources(s, back)
	h.Grow(len(fronts) * (s.size() + back.size() + len(who.may)))
	h.noteDefaults(s, who.taken)
	h.noteDefaults(back, who.taken)
	servers := len(back.own("server"))
	for i, f := range fronts {
		name := s.name
		if len(fronts) > 1 {
			name = fmt.Sprintf("%s-%d", reader.Label(name), i+1)
		}
		h.Grow(len(f.ports) * (1 + servers))
		fill(h.Add(s.at, "default", name), s, back, f, who)
	}
}

// fill fills a service in.
func fill(s *reader.Service, front, back *section, f bindGroup, who *sourceReader) {
	s.VIPs, s.SourceRanges = f.addrs, who.may.Sources()
	if l := who.opens; l.Words != nil {
		s.Opens = true
		to := "all sources"
		if s.SourceRanges != nil {
			to = "all of source_ranges"
		}
		s.Note(l.At, "the service is open to "+to+" now: "+l.Text(0)+" keeps sources out in a way that is not carried over", "write source_ranges")
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
	for _, in := range slices.Compact([]*section{front, back}) {
		for _, l := range in.lines {
			if l.Is("disabled") {
				s.Disabled = true
			} else if l.Is("server") && in != back {
				s.Note(l.At, l.Text(0)+" is left out: "+back.title()+" has the servers", "")
			} else if !who.taken[l.At] && !silent(l) {
				msg, hint := leftOut(l, "")
				s.Note(l.At, msg, hint)
			}
		}
	}
}

// addBalance reads how endpoints are chosen, and whether clients keep theirs.
func addBalance(s *reader.Service, back *section) {
	sticks := addSticks(s, back)
	switch l, _ := back.last("balance"); l.Arg(1) {
	case "", "roundrobin", "static-rr", "random":
	case "leastconn":
		s.Scheduler = "wlc"
	case "source":
		if sticks {
			s.Note(l.At, "balance source is left out: clients keep the endpoint that stick gave them", "")
		} else {
			s.Scheduler, s.HashOn = source.Maglev, source.ClientIP
		}
	default:
		s.Note(l.At, "balance "+source.Excerpt(l.Arg(1))+" is left out: endpoints get connections by weight", "")
	}
}

// addSticks reads whether clients keep their endpoint, by their address, and notes what else they keep it by.
func addSticks(s *reader.Service, back *section) (sticks bool) {
	var on reader.Line
	for _, l := range back.all("stick") {
		kind := l.Arg(1)
		if l.Arg(2) != "src" || !slices.Contains([]string{"on", "match", "store-request"}, kind) {
			s.Note(l.At, l.Text(0)+" is left out: clients are told apart by their address", "session_affinity keeps each on its endpoint")
			continue
		}
		if i := slices.IndexFunc(l.Words, func(w string) bool { return w == "if" || w == "unless" }); i >= 0 {
			s.Note(l.At, l.Text(i)+" of stick is left out: every client keeps its endpoint", "")
		}
		if kind != "store-request" {
			on, sticks = l, true
		}
	}
	if sticks {
		stickTable(s, back, on)
	}
	return sticks
}

// stickTable reads how long clients keep their endpoint.
func stickTable(s *reader.Service, back *section, on reader.Line) {
	s.Affinity = source.MaxAffinity
	table, _ := back.last("stick-table")
	if i := slices.Index(table.Words, "peers"); i >= 0 {
		s.Note(table.At, table.Text(i)+" of stick-table is left out: other hosts do not learn which endpoint a client has", "see docs/maglev.md")
	}
	if i := slices.Index(on.Words, "table"); i >= 0 && on.Arg(i+1) != back.name {
		s.Note(on.At, "table "+source.Excerpt(on.Arg(i+1))+" of stick is left out: clients keep their endpoint for 24h", "session_affinity_timeout says how long")
		return
	}
	i := slices.Index(table.Words, "expire")
	if i < 0 {
		s.Note(on.At, "stick on src without expire: clients keep their endpoint for 24h", "")
		return
	}
	if d, err := haproxyTime(table.Arg(i + 1)); err == nil && d >= source.MinAffinity {
		s.SetAffinity(table.At, d)
	}
}
