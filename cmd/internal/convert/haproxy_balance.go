package convert

import (
	"slices"
	"strings"

	"svcproxy.dev/svcproxy/source"
)

// haproxyBalance reads how endpoints are chosen, and whether clients keep theirs.
func (s *Service) haproxyBalance(back *section) {
	sticks := s.haproxySticks(back)
	switch l, _ := back.last("balance"); l.arg(1) {
	case "", "roundrobin", "static-rr", "random":
	case "leastconn":
		s.Scheduler = "wlc"
	case "source":
		if !sticks {
			s.Scheduler, s.HashOn = source.Maglev, source.ClientIP
		}
	default:
		s.note(l.at, "balance "+source.Excerpt(l.arg(1))+" is left out: endpoints get connections by weight", "")
	}
}

// haproxySticks reads whether clients keep their endpoint, by their address, and notes what else they keep it by.
func (s *Service) haproxySticks(back *section) (sticks bool) {
	var on configLine
	for _, l := range back.all("stick") {
		kind := l.arg(1)
		if l.arg(2) != "src" || !slices.Contains([]string{"on", "match", "store-request"}, kind) {
			s.note(l.at, source.Excerpt(strings.Join(l.words, " "))+" is left out: clients are told apart by their address", "session_affinity keeps each on its endpoint")
			continue
		}
		if i := slices.IndexFunc(l.words, func(w string) bool { return w == "if" || w == "unless" }); i >= 0 {
			s.note(l.at, source.Excerpt(strings.Join(l.words[i:], " "))+" of stick is left out: every client keeps its endpoint", "")
		}
		if kind != "store-request" {
			on, sticks = l, true
		}
	}
	if sticks {
		s.stickTable(back, on)
	}
	return sticks
}

// stickTable reads how long clients keep their endpoint.
func (s *Service) stickTable(back *section, on configLine) {
	s.Affinity = source.MaxAffinity
	table, _ := back.last("stick-table")
	if i := slices.Index(on.words, "table"); i >= 0 && on.arg(i+1) != back.name {
		s.note(on.at, "table "+source.Excerpt(on.arg(i+1))+" of stick is left out: clients keep their endpoint for 24h", "session_affinity_timeout says how long")
		return
	}
	i := slices.Index(table.words, "expire")
	if i < 0 {
		s.note(on.at, "stick on src without expire: clients keep their endpoint for 24h", "")
		return
	}
	if d, err := haproxyTime(table.arg(i + 1)); err == nil && d >= source.MinAffinity {
		s.setAffinity(table.at, d)
	}
}
