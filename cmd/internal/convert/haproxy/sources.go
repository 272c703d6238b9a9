package haproxy

import (
	"fmt"
	"math/bits"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"svcproxy.dev/svcproxy/cmd/internal/convert/reader"
)

// A sourceReader reads the rules of a section about sources.
type sourceReader struct {
	*haproxy
	may     reader.Ranges                 // the clients that the rules admit, as far as these depend on the source; all others are kept out
	taken   map[reader.Position]bool      // lines that say no more
	opens   reader.Line                   // a rule that keeps sources out in a way that may does not; no words: there is none
	acls    map[string][]reader.Line      // by their names
	tested  map[reader.Position]condition // of their lines
	at      reader.Position               // of the line that is evaluated
	exact   []reader.Position             // lines of a set that are understood
	changes bool                          // the source of a connection is not that of its packets
}

// A condition is a lower and an upper bound of the sources to which a rule applies.
type condition struct {
	least, most reader.Ranges
	bySource    bool // a part of it is about sources, or may be
}

var always = condition{least: reader.AllAddrs, most: reader.AllAddrs}

func (c condition) exact() bool { return c.least.Equal(c.most) }

func (c condition) not() condition { return condition{c.most.Not(), c.least.Not(), c.bySource} }

// either returns the union of conditions.
func either(all ...condition) (out condition) {
	var least, most []reader.Ranges
	for _, c := range all {
		least, most, out.bySource = append(least, c.least), append(most, c.most), out.bySource || c.bySource
	}
	out.least, out.most = reader.Union(least...), reader.Union(most...)
	return out
}

// sources evaluates the rules of a frontend and its backend. A connection must pass every set of rules.
func (h *haproxy) sources(front, back *section) *sourceReader {
	r := &sourceReader{haproxy: h, may: reader.AllAddrs, taken: map[reader.Position]bool{}}
	for _, s := range slices.Compact([]*section{front, back}) {
		rules := s.all("tcp-request")
		r.changes = r.changes || front.changesSources(rules)
		r.acls, r.tested = map[string][]reader.Line{}, map[reader.Position]condition{}
		for _, l := range s.all("acl") {
			r.acls[l.Arg(1)] = append(r.acls[l.Arg(1)], l)
		}
		rules = append(rules, s.all("tcp-response")...)
		for _, set := range [][]string{{"tcp-request", "connection"}, {"tcp-request", "session"}, {"tcp-request", "content"}, {"tcp-response", "content"}} {
			r.rules(rules, set)
		}
		if s == front { // a rule may keep sources from the default backend
			for _, l := range s.all("use_backend") {
				if r.condition(l, 2).bySource || strings.Contains(l.Arg(1), "src") && strings.Contains(l.Arg(1), "%[") {
					r.open(l)
				}
			}
		}
		for of := s; of != nil; of = of.defaults {
			r.open(of.hidden)
		}
	}
	r.taken[r.opens.At] = true // by a note of its own
	return r
}

// open records the first rule that keeps sources out in a way that a service does not.
func (r *sourceReader) open(l reader.Line) {
	if r.opens.Words == nil {
		r.opens = l
	}
}

// changesSources reports whether the address of a client is another one than that of its packets.
func (s *section) changesSources(rules []reader.Line) bool {
	return slices.ContainsFunc(s.all("bind"), func(l reader.Line) bool {
		return slices.Contains(l.Words, "accept-proxy") || slices.Contains(l.Words, "accept-netscaler-cip")
	}) || slices.ContainsFunc(rules, func(l reader.Line) bool {
		return l.Arg(2) == "expect-proxy" || l.Arg(2) == "expect-netscaler-cip" || l.Arg(2) == "set-src"
	})
}

// keepsNobodyOut matches actions that do not end the evaluation of a set of rules.
var keepsNobodyOut = regexp.MustCompile(`^(attach-srv|capture|do-log|do-resolve|expect-|pause|sc-|send-spoe-group|set-|switch-mode|track-sc|unset-)`)

// rules evaluates a set of rules, from the last to the first, because the first that applies decides. It computes
// two bounds of the sources that are admitted. Where they differ, and a rule is about sources, the service is open.
func (r *sourceReader) rules(rules []reader.Line, set []string) {
	most, least := reader.AllAddrs, reader.AllAddrs
	var keeps, partly reader.Line // a rule that keeps connections out, and a rule that is only partly about sources
	bySource, otherwise := false, false
	r.exact = nil
	for _, l := range slices.Backward(rules) {
		action := l.Arg(2)
		if !l.Is(set...) || action == "" || keepsNobodyOut.MatchString(action) {
			continue
		}
		c := r.condition(l, 3)
		r.Grow(len(most) + len(least) + len(c.most) + len(c.least))
		switch {
		case action == "accept":
			if c.bySource && otherwise { // it keeps its sources from a rule that is left out
				least = nil
			}
			most, least = reader.Union(most, c.most), reader.Union(least, c.least)
		case action != "reject" && action != "silent-drop" && action != "close":
			c.least, c.most, c.bySource = nil, reader.AllAddrs, true // of another program, perhaps
			fallthrough
		case c.bySource || c.exact():
			most, least = most.And(c.least.Not()), least.And(c.most.Not())
			keeps = l
		default:
			otherwise, keeps = true, l
		}
		bySource = bySource || c.bySource
		if c.exact() {
			r.exact = append(r.exact, l.At)
		} else if c.bySource {
			partly = l
		}
	}
	r.may = r.may.And(most)
	if bySource && !least.Equal(most) {
		if partly.Words == nil {
			partly = keeps
		}
		r.open(partly)
	}
	if !most.Equal(reader.AllAddrs) || least.Equal(most) {
		for _, at := range r.exact {
			r.taken[at] = true
		}
	}
}

// condition evaluates what follows an action, from a word on: if or unless, and tests that are ACL names or { ... }.
// Tests next to each other must all hold; of those with || or "or" between them, one must.
func (r *sourceReader) condition(l reader.Line, from int) condition {
	r.at = l.At
	words := l.Words[min(from, len(l.Words)):]
	if len(words) == 0 {
		return always
	}
	var parts []condition
	part, negate := always, false
	for i := 1; i < len(words); i++ {
		word := words[i]
		for strings.HasPrefix(word, "!") {
			word, negate = word[1:], !negate
		}
		if word == "" {
			continue
		}
		if word == "||" || word == "or" {
			parts, part = append(parts, part), always
			continue
		}
		var c condition
		if end := slices.Index(words[i:], "}"); word == "{" && end > 0 {
			c = r.test(words[i+1 : i+end])
			i += end
		} else {
			c = r.acl(word)
		}
		r.Grow(len(part.most) + len(c.most))
		if negate {
			c = c.not()
		}
		part = condition{part.least.And(c.least), part.most.And(c.most), part.bySource || c.bySource}
		negate = false
	}
	out := either(append(parts, part)...)
	switch words[0] {
	case "if":
	case "unless":
		out = out.not()
	default:
		out.least, out.most = nil, reader.AllAddrs
	}
	return out
}

// acl evaluates a named ACL, which holds where one of its lines does, or a predefined one.
func (r *sourceReader) acl(name string) condition {
	switch lines := r.acls[name]; {
	case len(lines) > 0:
		all := make([]condition, len(lines))
		for i, l := range lines {
			c, known := r.tested[l.At]
			if !known {
				r.at = l.At
				c = r.test(l.Words[min(2, len(l.Words)):])
				r.tested[l.At] = c
			}
			if all[i] = c; c.exact() {
				r.exact = append(r.exact, l.At)
			}
		}
		return either(all...)
	case name == "LOCALHOST":
		return r.test([]string{"src", "127.0.0.1/8", "::1"})
	case name == "TRUE" || name == "WAIT_END": // rules wait for what they do not know yet
		return always
	case name == "FALSE":
		return condition{}
	}
	return condition{most: reader.AllAddrs, bySource: !aboutContent.MatchString(name)}
}

// otherTests matches what is not about the address of a client. aboutContent matches predefined ACLs of that kind.
var (
	otherTests = regexp.MustCompile(`^(req|res|rep|payload|rdp_cookie|ssl_|dst|fe_|be_|nbsrv|avg_queue|connslots|queue|srv_|rand|date|proc|nbproc|` +
		`hostname|method|path|url|base|cook|status|src_port|fc_rtt|fc_http|fc_rcvd|(src|sc[0-9]?)_(conn|sess|http|bytes|kbytes|glitch|tracked|trackers)_?)`)
	aboutContent = regexp.MustCompile("^(HTTP|METH_|RDP_COOKIE$|REQ_CONTENT$)")
)

// test evaluates src with addresses and files of addresses. Any other test may apply to every source.
func (r *sourceReader) test(words []string) condition {
	unknown := condition{most: reader.AllAddrs, bySource: true}
	switch {
	case len(words) == 1 && (words[0] == "always_true" || words[0] == "wait_end"):
		return always
	case len(words) == 1 && words[0] == "always_false":
		return condition{}
	case len(words) > 0 && otherTests.MatchString(words[0]) && !strings.Contains(words[0], "src,") && !strings.Contains(words[0], "hdr"):
		unknown.bySource = false
		return unknown
	case len(words) < 2 || words[0] != "src" && words[0] != "fc_src" || r.changes:
		return unknown
	}
	var list []netip.Prefix
	for i := 1; i < len(words); i++ {
		texts := words[i : i+1]
		switch words[i] {
		case "--", "-i", "-n":
			continue
		case "-m":
			if i++; i == len(words) || words[i] != "ip" {
				return unknown
			}
			continue
		case "-f":
			var ok bool
			if i++; i == len(words) {
				return unknown
			}
			if texts, ok = r.file(words[i]); !ok {
				return unknown
			}
		}
		r.Grow(len(texts))
		for _, text := range texts {
			p, ok := sourceRange(text)
			if !ok {
				return unknown
			}
			list = append(list, p)
		}
	}
	set := reader.RangesOf(list...)
	return condition{set, set, true}
}

// A sourceFile is the first words of the lines of a file, or why it cannot be read.
type sourceFile struct {
	words []string
	err   error
}

// file returns the first words of the lines of a file.
func (r *sourceReader) file(name string) (words []string, ok bool) {
	f, known := r.files[name]
	if !known {
		var data []byte
		data, f.err = r.Include(filepath.Dir(r.in.Name), name)
		for line := range strings.Lines(string(data)) {
			if fields := strings.Fields(line); len(fields) > 0 && !strings.HasPrefix(fields[0], "#") {
				f.words = append(f.words, fields[0])
			}
		}
		r.files[name] = f
	}
	if f.err != nil {
		r.Note(r.at, fmt.Sprintf("the sources of a rule are not known: %s", f.err), "convert on the host that has the file")
	}
	return f.words, f.err == nil
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
