package haproxy

import (
	"fmt"
	"math/bits"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"svcproxy.dev/svcproxy/cmd/internal/convert/reader"
)

// sources are the clients that the rules of a section admit, as far as the rules depend on the source address.
type sources struct {
	may   reader.Ranges            // all others are kept out
	taken map[reader.Position]bool // lines that say no more
	opens configLine               // a rule that keeps sources out in a way that may does not; no words: there is none
}

// A sourceReader reads the rules of a section about sources.
type sourceReader struct {
	*haproxy
	sources
	acls    map[string][]configLine // by their names
	changes bool                    // the source of a connection is not that of its packets
}

// A condition is a lower and an upper bound of the sources to which a rule applies.
type condition struct {
	least, most reader.Ranges
	bySource    bool // a part of it is about sources
}

func (c condition) exact() bool { return c.least.Equal(c.most) }

// sources evaluates the rules of a frontend and its backend. A connection must pass every set of rules.
func (h *haproxy) sources(front, back *section) (sources, error) {
	r := sourceReader{haproxy: h, sources: sources{may: reader.AllAddrs, taken: map[reader.Position]bool{}}}
	for _, s := range slices.Compact([]*section{front, back}) {
		rules := s.all("tcp-request")
		r.changes = r.changes || front.changesSources(rules)
		r.acls = map[string][]configLine{}
		for _, l := range s.all("acl") {
			r.acls[l.Arg(1)] = append(r.acls[l.Arg(1)], l)
		}
		for _, set := range []string{"connection", "session", "content"} {
			if err := r.rules(rules, set); err != nil {
				return r.sources, err
			}
		}
		if s.hidden.Words != nil {
			r.opens = s.hidden
		}
	}
	if !r.may.Equal(reader.AllAddrs) {
		r.opens = configLine{}
	}
	r.taken[r.opens.at] = true // by a note of its own
	return r.sources, nil
}

// changesSources reports whether the address of a client is another one than that of its packets.
func (s *section) changesSources(rules []configLine) bool {
	return slices.ContainsFunc(s.all("bind"), func(l configLine) bool {
		return slices.Contains(l.Words, "accept-proxy") || slices.Contains(l.Words, "accept-netscaler-cip")
	}) || slices.ContainsFunc(rules, func(l configLine) bool {
		return l.Arg(2) == "expect-proxy" || l.Arg(2) == "expect-netscaler-cip" || l.Arg(2) == "set-src"
	})
}

// rules evaluates a set of rules. The first rule that applies decides; a condition that cannot be read may apply or not.
func (r *sourceReader) rules(rules []configLine, set string) error {
	undecided, accepted, rejected := reader.AllAddrs, reader.Ranges(nil), reader.Ranges(nil) // each at most
	var partly configLine
	for _, l := range rules {
		action := l.Arg(2)
		if l.Arg(1) != set || action != "accept" && action != "reject" && action != "silent-drop" {
			continue
		}
		c, err := r.condition(l.Words[3:])
		if err != nil {
			return err
		}
		if err := r.Grow(len(undecided) + len(accepted) + len(rejected)); err != nil {
			return err
		}
		if r.taken[l.at] = c.exact(); !c.exact() && c.bySource {
			partly = l
		}
		if action == "accept" {
			accepted = reader.Union(accepted, undecided.And(c.most))
		} else {
			rejected = reader.Union(rejected, undecided.And(c.most))
		}
		undecided = undecided.And(c.least.Not())
	}
	if may := reader.Union(accepted, undecided); !may.Equal(reader.AllAddrs) {
		r.may = r.may.And(may)
	} else if len(rejected) > 0 && partly.Words != nil {
		r.opens = partly
	}
	return nil
}

// condition evaluates what follows an action: if or unless, and tests that are ACL names or { ... }. Tests next to each
// other must all hold; of those with || or "or" between them, one must.
func (r *sourceReader) condition(words []string) (condition, error) {
	all := condition{least: reader.AllAddrs, most: reader.AllAddrs}
	if len(words) == 0 {
		return all, nil
	}
	var parts []condition
	part := all
	negate := false
	for i := 1; i < len(words); i++ {
		word := words[i]
		for strings.HasPrefix(word, "!") {
			word, negate = word[1:], !negate
		}
		if word == "" {
			continue
		}
		if word == "||" || word == "or" {
			parts, part = append(parts, part), all
			continue
		}
		var c condition
		var err error
		if end := slices.Index(words[i:], "}"); word == "{" && end > 0 {
			c, err = r.test(words[i+1 : i+end])
			i += end
		} else {
			c, err = r.acl(word)
		}
		if err != nil {
			return c, err
		}
		if err := r.Grow(len(part.most) + len(c.most)); err != nil {
			return c, err
		}
		if negate {
			c.least, c.most = c.most.Not(), c.least.Not()
		}
		part.least, part.most, part.bySource = part.least.And(c.least), part.most.And(c.most), part.bySource || c.bySource
		negate = false
	}
	out := either(append(parts, part)...)
	switch words[0] {
	case "if":
	case "unless":
		out.least, out.most = out.most.Not(), out.least.Not()
	default:
		out.least, out.most = nil, reader.AllAddrs
	}
	return out, nil
}

// either returns the union of conditions.
func either(all ...condition) (out condition) {
	var least, most []reader.Ranges
	for _, c := range all {
		least, most, out.bySource = append(least, c.least), append(most, c.most), out.bySource || c.bySource
	}
	out.least, out.most = reader.Union(least...), reader.Union(most...)
	return out
}

// acl evaluates a named ACL, which holds where one of its lines does, or a predefined one.
func (r *sourceReader) acl(name string) (out condition, err error) {
	switch lines := r.acls[name]; {
	case len(lines) > 0:
		all := make([]condition, len(lines))
		for i, l := range lines {
			c, err := r.test(l.Words[min(2, len(l.Words)):])
			if err != nil {
				return out, err
			}
			r.taken[l.at], all[i] = c.exact(), c
		}
		return either(all...), nil
	case name == "LOCALHOST":
		return r.test([]string{"src", "127.0.0.1/8", "::1"})
	case name == "TRUE":
		return condition{least: reader.AllAddrs, most: reader.AllAddrs}, nil
	case name == "FALSE":
		return condition{}, nil
	}
	return condition{most: reader.AllAddrs}, nil
}

// test evaluates src with addresses and files of addresses. Any other test may apply to every source.
func (r *sourceReader) test(words []string) (condition, error) {
	unknown := condition{most: reader.AllAddrs}
	if len(words) < 2 || words[0] != "src" {
		unknown.bySource = len(words) > 0 && strings.HasPrefix(words[0], "src,")
		return unknown, nil
	}
	if unknown.bySource = true; r.changes {
		return unknown, nil
	}
	var list []netip.Prefix
	for i := 1; i < len(words); i++ {
		texts := words[i : i+1]
		switch words[i] {
		case "--", "-i", "-n":
			continue
		case "-m":
			if i++; i == len(words) || words[i] != "ip" {
				return unknown, nil
			}
			continue
		case "-f":
			var ok bool
			if i++; i == len(words) {
				return unknown, nil
			}
			if texts, ok = r.file(words[i]); !ok {
				return unknown, nil
			}
		}
		if err := r.Grow(len(texts)); err != nil {
			return unknown, err
		}
		for _, text := range texts {
			p, ok := sourceRange(text)
			if !ok {
				return unknown, nil
			}
			list = append(list, p)
		}
	}
	set := reader.RangesOf(list...)
	return condition{set, set, true}, nil
}

// file returns the first words of the lines of a file.
func (r *sourceReader) file(name string) (words []string, ok bool) {
	if text, known := r.files[name]; known {
		return text, text != nil
	}
	r.files[name] = nil
	data, err := r.Include(filepath.Dir(r.in.Name), name)
	if err != nil {
		r.Note(reader.Position{File: r.in.Name}, fmt.Sprintf("the sources of a rule are not known: %s", err), "convert on the host that has the file")
		return nil, false
	}
	words = []string{}
	for line := range strings.Lines(string(data)) {
		if fields := strings.Fields(line); len(fields) > 0 && !strings.HasPrefix(fields[0], "#") {
			words = append(words, fields[0])
		}
	}
	r.files[name] = words
	return words, true
}

// sourceRange reads an address or a range, with its length or a mask.
func sourceRange(text string) (netip.Prefix, bool) {
	host, mask, isRange := strings.Cut(text, "/")
	a, err := netip.ParseAddr(host)
	if err != nil || a.Is4In6() || a.Zone() != "" {
		return netip.Prefix{}, false
	}
	if m, err := netip.ParseAddr(mask); err == nil && m.Is4() && a.Is4() {
		b := m.As4()
		n := uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
		p, err := a.Prefix(bits.LeadingZeros32(^n))
		return p, err == nil && n<<p.Bits() == 0
	}
	if !isRange {
		return netip.PrefixFrom(a, a.BitLen()), true
	}
	p, err := netip.ParsePrefix(text)
	return p.Masked(), err == nil
}
