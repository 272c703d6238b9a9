package haproxy

import (
	"slices"

	"svcproxy.dev/svcproxy/cmd/internal/convert/reader"
	"svcproxy.dev/svcproxy/source"
)

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
