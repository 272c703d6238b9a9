package convert

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"svcproxy.dev/svcproxy/source"
)

// readHAProxy reads a configuration of HAProxy, as far as it is about connections: sections of mode
// tcp.
func readHAProxy(in Input) (*Result, error) {
	h := haproxy{Result: &Result{}, backends: map[string]*section{}, defaults: map[string]*section{}}
	if err := h.sections(in); err != nil {
		return nil, err
	}
	for _, s := range h.fronts {
		if err := h.front(s); err != nil {
			return nil, errorAt(s.at, "%s", err)
		}
	}
	for _, s := range h.order {
		if err := h.grow(s.size()); err != nil {
			return nil, errorAt(s.at, "%s", err)
		}
		if !s.used && s.mode() == "tcp" {
			h.note(s.at, "backend "+source.Excerpt(s.name)+" is left out: no frontend has it as its default_backend", "")
		}
	}
	return h.Result, nil
}

type haproxy struct {
	*Result
	fronts   []*section // listen and frontend
	order    []*section // backends
	backends map[string]*section
	defaults map[string]*section
}

// A section is a header and the lines below it.
type section struct {
	kind, name string
	at         place
	lines      []configLine
	defaults   *section // nil: none
	used       bool
}

type configLine struct {
	at    place
	words []string
}

// arg returns a word by its number; empty: there is none.
func (l configLine) arg(i int) string {
	if i < len(l.words) {
		return l.words[i]
	}
	return ""
}

// is reports whether a line begins with these words.
func (l configLine) is(words ...string) bool {
	return len(l.words) >= len(words) && slices.Equal(l.words[:len(words)], words)
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
func (s *section) all(words ...string) (list []configLine) {
	if s == nil {
		return nil
	}
	list = s.defaults.all(words...)
	for _, l := range s.lines {
		if l.is(words...) {
			list = append(list, l)
		}
	}
	return list
}

// size returns how much there is to look through, with all that is default.
func (s *section) size() (n int) {
	for ; s != nil; s = s.defaults {
		n += 1 + len(s.lines)
	}
	return n
}

func (s *section) mode() string {
	l, _ := s.last("mode")
	return cmp.Or(l.arg(1), "tcp")
}

// sectionWords begin a section.
var sectionWords = []string{"global", "defaults", "listen", "frontend", "backend", "userlist", "peers", "resolvers", "mailers", "program", "cache", "ring",
	"http-errors", "fcgi-app", "log-forward", "crt-store", "traces", "acme", "log-profile"}

// maxSections bounds the sections of a configuration.
const maxSections = 20_000

// sections splits the text.
func (h *haproxy) sections(in Input) error {
	var current, standard *section
	n, sections := 0, 0
	for line := range strings.Lines(string(in.Data)) {
		n++
		at := place{in.Name, n}
		words, err := quotedWords(strings.TrimRight(line, "\r\n"), true)
		switch {
		case err != nil:
			return errorAt(at, "%s", err)
		case len(words) == 0:
		case slices.Contains(sectionWords, words[0]):
			if sections++; sections > maxSections {
				return errorAt(at, "there are more than %d sections", maxSections)
			}
			current = &section{kind: words[0], at: at, defaults: standard}
			if len(words) > 1 {
				current.name = words[1]
			}
			standard = h.begin(current, words, standard)
		case current == nil:
			return errorAt(at, "%s is in no section", source.Excerpt(words[0]))
		default:
			current.lines = append(current.lines, configLine{at, words})
		}
	}
	return nil
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
			s.lines = append(s.lines, configLine{s.at, append([]string{"bind"}, words[2:]...)})
		}
		h.fronts = append(h.fronts, s)
	case "backend":
		h.backends[s.name] = s
		h.order = append(h.order, s)
	}
	return standard
}

// quotedWords splits a line at blanks, where it has comments up to a #. Quotes of either kind and a backslash take what
// they are about as it is.
func quotedWords(line string, comments bool) (words []string, err error) {
	var b strings.Builder
	inWord, quote := false, byte(0)
	for i := 0; i < len(line); i++ {
		c := line[i]
		switch {
		case quote == 0 && c == '#' && comments:
			line = line[:i]
		case c == '\\' && quote != '\'' && i+1 < len(line):
			i++
			b.WriteString(unescaped(line[i]))
			inWord = true
		case quote != 0 && c == quote:
			quote = 0
		case quote == 0 && (c == '"' || c == '\''):
			quote, inWord = c, true
		case quote == 0 && (c == ' ' || c == '\t'):
			if inWord {
				words = append(words, b.String())
			}
			b.Reset()
			inWord = false
		default:
			b.WriteByte(c)
			inWord = true
		}
	}
	if inWord {
		words = append(words, b.String())
	}
	if quote != 0 {
		return nil, quoteError{}
	}
	return words, nil
}

// unescaped returns what a backslash and a letter mean.
func unescaped(c byte) string {
	switch c {
	case 'n':
		return "\n"
	case 'r':
		return "\r"
	case 't':
		return "\t"
	}
	return string(rune(c))
}

// front makes services of a listen or frontend section.
func (h *haproxy) front(s *section) error {
	if err := h.grow(s.size()); err != nil {
		return err
	}
	back := s
	switch l, found := s.last("default_backend"); {
	case s.kind == "listen" && !found:
	case found && h.backends[l.arg(1)] != nil:
		back = h.backends[l.arg(1)]
		back.used = true
	default:
		h.note(s.at, s.kind+" "+source.Excerpt(s.name)+" is left out: it has no default_backend", "")
		return nil
	}
	if mode := s.mode(); mode != "tcp" {
		h.note(s.at, fmt.Sprintf("%s %s of mode %s is left out: svcproxy balances connections, not requests", s.kind, source.Excerpt(s.name), source.Excerpt(mode)),
			"keep HAProxy for it, as an endpoint if you like")
		return nil
	}
	fronts, err := h.binds(s)
	if err != nil {
		return err
	}
	for i, f := range fronts {
		name := s.name
		if len(fronts) > 1 {
			name = fmt.Sprintf("%s-%d", label(name), i+1)
		}
		if err := h.grow(len(f.ports) + back.size()); err != nil {
			return err
		}
		h.service(s.at, "default", name).haproxy(s, back, f)
	}
	return nil
}

// A bindGroup is addresses that have the same ports. Without addresses it is all of the host.
type bindGroup struct {
	addrs []netip.Addr
	ports []uint16
}

// binds returns where a section listens, in groups.
func (h *haproxy) binds(s *section) ([]bindGroup, error) {
	ports := map[netip.Addr][]uint16{}
	var order []netip.Addr
	for _, l := range s.all("bind") {
		if slices.Contains(l.words, "ssl") {
			h.note(l.at, "bind "+source.Excerpt(l.arg(1))+" with ssl is left out: TLS is ended by endpoints only", "give the certificate to the endpoints, or keep HAProxy as an endpoint")
			continue
		}
		for _, word := range []string{"accept-proxy", "interface", "accept-netscaler-cip"} {
			if slices.Contains(l.words, word) {
				h.note(l.at, word+" of bind is left out", "")
			}
		}
		for part := range strings.SplitSeq(l.arg(1), ",") {
			a, list, err := bindAddr(part)
			if err != nil {
				h.note(l.at, "bind "+source.Excerpt(part)+" is left out: "+err.Error(), "")
				continue
			}
			if err := h.grow(len(list)); err != nil {
				return nil, err
			}
			if _, known := ports[a]; !known {
				order = append(order, a)
			}
			ports[a] = append(ports[a], list...)
		}
	}
	return bindGroups(order, ports), nil
}

func bindGroups(order []netip.Addr, ports map[netip.Addr][]uint16) (groups []bindGroup) {
	for _, a := range order {
		list := slices.Compact(slices.Sorted(slices.Values(ports[a])))
		if !a.IsValid() {
			groups = append(groups, bindGroup{nil, list})
			continue
		}
		i := slices.IndexFunc(groups, func(g bindGroup) bool { return g.addrs != nil && slices.Equal(g.ports, list) })
		if i < 0 {
			i, groups = len(groups), append(groups, bindGroup{ports: list})
		}
		groups[i].addrs = append(groups[i].addrs, a)
	}
	return groups
}

// maxPorts is how many ports of a range become ports of a service.
const maxPorts = 100

// bindAddr reads ADDRESS:PORT or ADDRESS:PORT-PORT, without address or with * for all. No address
// means all of them.
func bindAddr(text string) (a netip.Addr, ports []uint16, err error) {
	if kind, rest, found := strings.Cut(text, "@"); found {
		if kind != "ipv4" && kind != "ipv6" {
			return a, nil, fmt.Errorf("it is no address of IP")
		}
		text = rest
	}
	i := strings.LastIndexByte(text, ':')
	if i < 0 {
		return a, nil, fmt.Errorf("it has no port")
	}
	if host := strings.Trim(text[:i], "[]"); host != "" && host != "*" {
		if a, err = netip.ParseAddr(host); err != nil {
			return a, nil, fmt.Errorf("%s is no address", source.Excerpt(host))
		}
		if a.IsUnspecified() {
			a = netip.Addr{}
		}
	}
	ports, err = portRange(text[i+1:], "-")
	return a, ports, err
}

// portRange reads a port, or all from one to another.
func portRange(text, sign string) (ports []uint16, err error) {
	from, to, isRange := strings.Cut(text, sign)
	first, err := portOf(from)
	if err != nil || first == 0 {
		return nil, fmt.Errorf("%s is no port", source.Excerpt(text))
	}
	last := first
	if isRange {
		if last, err = portOf(to); err != nil || last < first {
			return nil, fmt.Errorf("%s is no range of ports", source.Excerpt(text))
		}
	}
	if int(last)-int(first) >= maxPorts {
		return nil, fmt.Errorf("the range %s has more than %d ports; write them as you need them", text, maxPorts)
	}
	for n := int(first); n <= int(last); n++ {
		ports = append(ports, uint16(n))
	}
	return ports, nil
}

// haproxy fills a service in.
func (s *Service) haproxy(front, back *section, f bindGroup) {
	s.VIPs = f.addrs
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
		s.note(front.at, "a bind to all addresses is a node port, on the addresses of node_port_addresses", "set it in svcproxy.toml, or write vips in place of node_port")
	}
	s.haproxyBalance(back)
	s.haproxyServers(back)
	s.haproxyLeftOut(front)
	if back != front {
		s.haproxyLeftOut(back)
	}
}

// haproxyBalance reads how endpoints are chosen, and whether clients keep theirs.
func (s *Service) haproxyBalance(back *section) {
	l, _ := back.last("balance")
	on, sticks := back.last("stick", "on", "src")
	if !sticks {
		on, sticks = back.last("stick", "match", "src")
	}
	if sticks {
		s.Affinity = source.MaxAffinity
		table, _ := back.last("stick-table")
		if i := slices.Index(table.words, "expire"); i >= 0 {
			if d, err := haproxyTime(table.arg(i + 1)); err == nil && d >= source.MinAffinity {
				s.setAffinity(table.at, d)
			}
		} else {
			s.note(on.at, "stick on src without expire: clients keep their endpoint for 24h", "")
		}
	}
	switch l.arg(1) {
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

// meaningless are first words of lines that have no meaning where packets are forwarded and no connection ends here.
var meaningless = []string{"bind", "mode", "server", "default-server", "balance", "default_backend", "stick-table", "stick", "log", "log-format", "log-tag", "timeout",
	"maxconn", "retries", "description", "id", "http-check", "tcp-check", "hash-type", "hash-balance-factor", "fullconn", "enabled", "stats", "unique-id-format", "backlog",
	"email-alert", "error-log-format", "guid", "server-template", "option"}

// plainOptions are options that have no meaning for them either, or are read elsewhere.
var plainOptions = []string{"tcplog", "httplog", "dontlognull", "dontlog-normal", "log-separate-errors", "logasap", "tcpka", "clitcpka", "srvtcpka", "redispatch", "splice-auto",
	"splice-request", "splice-response", "tcp-smart-accept", "tcp-smart-connect", "log-health-checks", "nolinger", "contstats", "allbackups", "abortonclose", "persist",
	"tcp-check", "httpchk", "ssl-hello-chk", "mysql-check", "pgsql-check", "redis-check", "ldap-check", "smtpchk", "external-check", "socket-stats", "checkcache"}

// haproxyLeftOut notes what else is written in a section.
func (s *Service) haproxyLeftOut(in *section) {
	for _, l := range in.lines {
		switch word := l.arg(0); {
		case word == "option" && !slices.Contains(plainOptions, l.arg(1)):
			s.note(l.at, "option "+source.Excerpt(l.arg(1))+" is left out", "")
		case word == "disabled":
			s.Disabled = true
		case word == "server-template":
			s.note(l.at, "server-template is left out: nothing is looked up by name", "write the endpoints")
		case word == "use_backend" || word == "use-server":
			s.note(l.at, word+" "+source.Excerpt(l.arg(1))+" is left out: endpoints are not chosen by rules", "write a service with an address of its own")
		case word == "acl" || strings.HasPrefix(word, "tcp-request") || strings.HasPrefix(word, "tcp-response"):
			s.note(l.at, word+" "+source.Excerpt(l.arg(1))+" is left out: what is in connections is not looked at", "load_balancer_source_ranges says who may use load_balancer_ips")
		case !slices.Contains(meaningless, word):
			s.note(l.at, source.Excerpt(word)+" is left out", "")
		}
	}
}
