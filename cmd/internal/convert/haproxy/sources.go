package haproxy

import (
	"math/bits"
	"net/netip"
	"slices"
	"strings"

	"svcproxy.dev/svcproxy/cmd/internal/convert/reader"
)

// sources are who may use what a section listens on.
type sources struct {
	ranges []netip.Prefix           // empty: everybody
	taken  map[reader.Position]bool // lines that say so
}

// A sourceReader reads the rules of a section about sources.
type sourceReader struct {
	*reader.Result
	sources
	acls map[string][]configLine // by their names
}

// sources reads who may use what a section listens on, where its tcp-request rules say no more than that.
func (h *haproxy) sources(s *section) (sources, error) {
	rules := s.all("tcp-request")
	if len(rules) == 0 || s.changesSources(rules) {
		return sources{}, nil
	}
	acls := map[string][]configLine{}
	for _, l := range s.all("acl") {
		acls[l.Arg(1)] = append(acls[l.Arg(1)], l)
	}
	for _, set := range []string{"connection", "session", "content"} {
		r := sourceReader{Result: h.Result, sources: sources{taken: map[reader.Position]bool{}}, acls: acls}
		known, err := r.rules(rules, set)
		if err != nil || known {
			return r.sources, err
		}
	}
	return sources{}, nil
}

// changesSources reports whether the address of a client is another one than that of its packets.
func (s *section) changesSources(rules []configLine) bool {
	return slices.ContainsFunc(s.all("bind"), func(l configLine) bool {
		return slices.Contains(l.Words, "accept-proxy") || slices.Contains(l.Words, "accept-netscaler-cip")
	}) || slices.ContainsFunc(rules, func(l configLine) bool {
		return l.Arg(2) == "expect-proxy" || l.Arg(2) == "expect-netscaler-cip" || l.Arg(2) == "set-src"
	})
}

// rules reads the rules of a set, and reports whether they let in the sources that it has read and no others:
// accept if SOURCES, any number of times, and in the end reject, or reject unless SOURCES.
func (r *sourceReader) rules(rules []configLine, set string) (known bool, err error) {
	for _, l := range rules {
		action := l.Arg(2)
		if l.Arg(1) != set || action != "accept" && action != "reject" && action != "silent-drop" {
			continue
		}
		conditional, negated := len(l.Words) > 3, false
		if conditional {
			if negated, known, err = r.condition(l.Words[3:]); !known || err != nil {
				return false, err
			}
		}
		r.taken[l.at] = true
		switch {
		case action == "accept" && (negated || !conditional), action != "accept" && conditional && !negated:
			return false, nil
		case action != "accept":
			return len(r.ranges) > 0 && !r.more(rules, set, l), nil
		}
	}
	return false, nil
}

// more reports whether there are rules behind the one that lets in no others.
func (r *sourceReader) more(rules []configLine, set string, last configLine) bool {
	return slices.ContainsFunc(rules, func(l configLine) bool {
		return l.Arg(1) == set && l.at.Line > last.at.Line && (l.Arg(2) == "reject" || l.Arg(2) == "silent-drop") && len(last.Words) > 3
	})
}

// condition reads if or unless with one name of an acl or one { src ... }, and takes up its sources.
func (r *sourceReader) condition(words []string) (negated, known bool, err error) {
	negated = words[0] == "unless"
	if words[0] != "if" && !negated {
		return false, false, nil
	}
	words = slices.Clone(words[1:])
	for len(words) > 0 && strings.HasPrefix(words[0], "!") {
		negated = !negated
		if words[0] = words[0][1:]; words[0] == "" {
			words = words[1:]
		}
	}
	switch n := len(words); {
	case n > 2 && words[0] == "{" && slices.Index(words, "}") == n-1:
		known, err = r.take(words[1 : n-1])
	case n == 1 && len(r.acls[words[0]]) > 0:
		known, err = r.acl(words[0])
	}
	return negated, known, err
}

// acl takes up the sources of all lines of an acl.
func (r *sourceReader) acl(name string) (known bool, err error) {
	for _, l := range r.acls[name] {
		if known, err := r.take(l.Words[min(2, len(l.Words)):]); !known || err != nil {
			return false, err
		}
		r.taken[l.at] = true
	}
	return true, nil
}

// take takes up what follows src.
func (r *sourceReader) take(words []string) (known bool, err error) {
	if len(words) < 2 || words[0] != "src" {
		return false, nil
	}
	if err := r.Grow(len(words)); err != nil {
		return false, err
	}
	for _, text := range words[1:] {
		p, ok := sourceRange(text)
		if !ok {
			return false, nil
		}
		if !slices.Contains(r.ranges[max(0, len(r.ranges)-1):], p) {
			r.ranges = append(r.ranges, p)
		}
	}
	return true, nil
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
