package convert_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/cmd/internal/convert"
	"svcproxy.dev/svcproxy/cmd/internal/convert/reader"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/read"
)

// A statement is a part of a line of an input. It is in the service file, or a note names it.
type statement struct {
	line    int
	word    string                       // that the note has
	of      *statement                   // that it is a part of
	with    *statement                   // that says the same
	carried func([]*source.Service) bool // nil: it never is
}

// A config is an input that is made at random, with its statements.
type config struct {
	*rand.Rand
	text  strings.Builder
	lines int
	after int // lines behind the one that statements are about
	all   []*statement
}

// add adds lines.
func (c *config) add(format string, args ...any) {
	text := fmt.Sprintf(format, args...) + "\n"
	c.text.WriteString(text)
	c.lines, c.after = c.lines+c.after+strings.Count(text, "\n"), 0
}

// states says what the last line, or one so many lines before it, states.
func (c *config) states(of *statement, word string, carried func([]*source.Service) bool) *statement {
	s := &statement{line: c.lines, word: word, of: of, carried: carried}
	c.all = append(c.all, s)
	return s
}

// often reports true n times of ten.
func (c *config) often(n int) bool { return c.IntN(10) < n }

func pick[T any](c *config, of ...T) T { return of[c.IntN(len(of))] }

// serviceAt returns the service of an address and port; nil: there is none.
func serviceAt(all []*source.Service, addr string, port int) *source.Service {
	i := slices.IndexFunc(all, func(s *source.Service) bool {
		hasPort := slices.ContainsFunc(s.Ports, func(p source.Port) bool { return int(p.Port) == port })
		return hasPort && (slices.Contains(slices.Collect(s.Addresses()), addrOf(addr)) || addr == "" && s.HasNodePort())
	})
	if i < 0 {
		return nil
	}
	return all[i]
}

func addrOf(text string) netip.Addr {
	a, _ := netip.ParseAddr(text)
	return a
}

// of returns a function that asks about the service of an address and port.
func of(addr string, port int, ask func(*source.Service) bool) func([]*source.Service) bool {
	return func(all []*source.Service) bool {
		s := serviceAt(all, addr, port)
		return s != nil && ask(s)
	}
}

func exists(*source.Service) bool { return true }

// hasServer asks for an endpoint, with a weight if that is not negative.
func hasServer(addr string, weight int) func(*source.Service) bool {
	return func(s *source.Service) bool {
		return slices.ContainsFunc(s.Endpoints, func(e source.Endpoint) bool { return e.Addr == addrOf(addr) && (weight < 0 || int(e.Weight) == weight) })
	}
}

func hasCheck(kind string) func(*source.Service) bool {
	return func(s *source.Service) bool { return s.HealthCheck != nil && s.HealthCheck.Type.String() == kind }
}

func hasAffinity(d time.Duration) func(*source.Service) bool {
	return func(s *source.Service) bool { return s.Affinity == d }
}

func hasRanges(ranges ...string) func(*source.Service) bool {
	return func(s *source.Service) bool {
		return fmt.Sprint(s.SourceRanges, s.LoadBalancerSourceRanges) == fmt.Sprint(ranges, []string{})
	}
}

// generators make an input of each program.
var generators = map[string]func(*config){"keepalived": keepalivedConfig, "haproxy": haproxyConfig, "iptables": iptablesConfig, "ipvsadm": ipvsadmConfig}

// What an input states is in the service file, or named by a line, whatever is beside it.
func TestNothingIsInNeither(t *testing.T) {
	for _, f := range convert.Formats {
		generate := generators[f.Name]
		if generate == nil {
			if withKubernetes || f.Name != "kubernetes" && f.Name != "cilium" {
				t.Errorf("no generator for %s", f.Name)
			}
			continue
		}
		carried, named := 0, 0
		for seed := range uint64(150) {
			c := &config{Rand: rand.New(rand.NewPCG(seed, 38))}
			generate(c)
			d, err := document(f, reader.Input{Name: "in", Data: []byte(c.text.String())})
			if err != nil {
				t.Fatalf("%s, seed %d: %v in\n%s", f.Name, seed, err, c.text.String())
			}
			services, _ := read.Parse("services.toml", d.TOML)
			notes := linesOf(d.Notes)
			for _, s := range c.all {
				switch {
				case s.carried != nil && s.carried(services):
					carried++
				case s.named(notes):
					named++
				default:
					t.Fatalf("%s, seed %d: line %d: %q is in neither\n%s\n%s\n%v", f.Name, seed, s.line, s.word, c.text.String(), d.TOML, d.Notes)
				}
			}
		}
		t.Logf("%s: %d statements are carried over, %d are named", f.Name, carried, named)
		if carried < 300 || named < 200 {
			t.Errorf("%s: %d statements are carried over, and %d named", f.Name, carried, named)
		}
	}
}

// named reports whether a note names a statement, or what it is part of.
func (s *statement) named(notes map[int][]string) bool {
	says := func(text string) bool {
		return strings.Contains(text, s.word) || strings.Contains(text, "is a comment: it has no endpoint")
	}
	return s != nil && (slices.ContainsFunc(notes[s.line], says) || s.of.named(notes) || s.with.named(notes))
}

var alsoLines = regexp.MustCompile(` \(also lines? ([0-9, and]+)\)`)

// linesOf returns the texts of notes, by the lines that they name.
func linesOf(notes []reader.Note) map[int][]string {
	out := map[int][]string{}
	for _, n := range notes {
		text := n.String()
		out[n.At.Line] = append(out[n.At.Line], text)
		if m := alsoLines.FindStringSubmatch(text); m != nil {
			for word := range strings.FieldsFuncSeq(m[1], func(r rune) bool { return r < '0' || r > '9' }) {
				line, _ := strconv.Atoi(word)
				out[line] = append(out[line], text)
			}
		}
	}
	return out
}

func keepalivedConfig(c *config) {
	for i := range 1 + c.IntN(4) {
		addr, port := fmt.Sprintf("192.0.2.%d", i+1), pick(c, 80, 443)
		usual := fmt.Sprintf("%s %d", addr, port)
		where := pick(c, usual, usual, usual, usual, usual, fmt.Sprintf("fwmark %d", i+1), addr+" 0", "lb.example 80")
		c.add("virtual_server %s {\n protocol %s", where, pick(c, "TCP", "UDP", "SCTP"))
		c.lines--
		vs := c.states(nil, "virtual_server", of(addr, port, exists))
		c.lines++
		if scheduler := pick(c, "rr", "wlc", "nosuch"); c.often(7) {
			c.add(" lb_algo %s", scheduler)
			s := c.states(vs, "scheduler "+scheduler, of(addr, port, func(s *source.Service) bool { return s.Scheduler == scheduler }))
			s.line = vs.line
		}
		if c.often(3) {
			c.add(" lb_kind %s", pick(c, "NAT", "DR", "TUN"))
		}
		if c.often(3) {
			c.add(" persistence_timeout 50")
			c.states(vs, "keep their endpoint", of(addr, port, hasAffinity(50*time.Second)))
		}
		if key := pick(c, "hysteresis 1", "quorum_up /bin/true", "frobnicate 7", "ha_suspend"); c.often(3) {
			c.add(" %s", key)
			c.states(vs, strings.Fields(key)[0], nil)
		}
		if c.often(2) {
			c.add(" sorry_server 10.9.9.9 %d", port)
			c.states(vs, "10.9.9.9", of(addr, port, hasServer("10.9.9.9", -1)))
		}
		for k := range 1 + c.IntN(4) {
			host := pick(c, fmt.Sprintf("10.0.0.%d", k+1), fmt.Sprintf("10.0.0.%d", k+1), "10.0.0.1", "127.0.0.1", "web.example")
			c.add(" real_server %s %d {", host, port)
			server := c.states(vs, host, of(addr, port, hasServer(host, -1)))
			if weight := c.IntN(9); c.often(5) {
				c.add("  weight %d", weight)
				w := c.states(server, host, of(addr, port, hasServer(host, weight)))
				w.line = server.line
			}
			keepalivedCheck(c, server, addr, port)
			c.add(" }")
		}
		c.add("}")
	}
}

func keepalivedCheck(c *config, server *statement, addr string, port int) {
	kind := pick(c, "TCP_CHECK", "TCP_CHECK", "HTTP_GET", "MISC_CHECK", "PING_CHECK", "SMTP_CHECK", "UDP_CHECK", "")
	if kind == "" {
		return
	}
	c.add("  %s {", kind)
	types := map[string]string{"TCP_CHECK": "tcp", "HTTP_GET": "http", "MISC_CHECK": "exec", "SMTP_CHECK": "tcp", "UDP_CHECK": "udp"}
	check := c.states(server, "check", of(addr, port, hasCheck(types[kind])))
	if kind == "PING_CHECK" || kind == "UDP_CHECK" {
		check.word = kind
	}
	switch kind {
	case "HTTP_GET":
		c.add("   url {\n    path /%d\n   }", c.IntN(2))
	case "MISC_CHECK":
		c.add("   misc_path \"/bin/alive host-%d\"", c.IntN(3))
	}
	if c.often(2) && kind != "PING_CHECK" && kind != "UDP_CHECK" {
		c.add("   frobnicate 7")
		c.states(check, "frobnicate", nil)
	}
	c.add("  }")
}

func haproxyConfig(c *config) {
	c.add("defaults\n mode tcp")
	if c.often(5) {
		c.add(" retries 3")
		c.states(nil, "retries", nil)
	}
	for i := range 1 + c.IntN(4) {
		addr, port := fmt.Sprintf("192.0.2.%d", i+1), 80+i
		c.add("listen web%d", i)
		section := c.states(nil, "listen", of(addr, port, exists))
		if i > 0 && c.often(1) {
			c.add(" mode http")
		}
		c.add(" bind %s:%d%s", addr, port, pick(c, "", "", "", " ssl crt x.pem", " accept-proxy"))
		bind := c.states(section, "bind", of(addr, port, exists))
		rule := pick(c, "connection reject unless { src 10.0.0.0/8 }", "content reject if !{ src 10.0.0.0/8 }", "connection reject if { src -f nowhere.lst }",
			"content accept if { req_ssl_hello_type 1 }", "content accept if { src 10.0.0.0/8 }\n tcp-request content reject if WAIT_END",
			"content accept if { src 10.0.0.0/8 } { req_ssl_sni a }", "connection reject if { src_is_local }", "session lua.guard")
		if c.often(4) {
			c.add(" tcp-request %s", rule)
			c.states(bind, "tcp-request", of(addr, port, hasRanges("10.0.0.0/8")))
		}
		if line := pick(c, "maxconn 100", "timeout client 1m", "option redispatch", "use_backend x if TRUE", "frobnicate 7", "fullconn 5"); c.often(4) {
			c.add(" %s", line)
			c.states(bind, strings.Fields(line)[0], nil)
		}
		if c.often(3) {
			c.add(" stick-table type ip size 1m expire 30m\n stick on src")
			c.states(bind, "stick", of(addr, port, hasAffinity(30*time.Minute)))
		}
		kind := pick(c, "tcp", "http", "tcp-check")
		switch kind {
		case "http":
			c.add(" option httpchk GET /alive%s", pick(c, "", "", ` HTTP/1.0\r\nAuthorization:\ Basic\ YWRt`))
		case "tcp-check":
			c.add(" option tcp-check\n tcp-check send PING\n tcp-check expect %s PONG", pick(c, "string", "! string"))
		}
		var steps *statement
		if kind == "tcp-check" {
			steps = c.states(bind, "check", of(addr, port, func(s *source.Service) bool { return s.HealthCheck != nil && s.HealthCheck.Expect == "PONG" }))
			kind = "tcp"
		}
		for k := range 1 + c.IntN(4) {
			host := pick(c, fmt.Sprintf("10.0.0.%d", k+1), fmt.Sprintf("10.0.0.%d", k+1), "10.0.0.1", "127.0.0.1", "2001:db8::1", "web.example", "/run/web.sock")
			check, weight := pick(c, "", " check", " check port 81", " check inter 7s", " check backup"), c.IntN(9)
			params := pick(c, "", "", " maxconn 5", " send-proxy", " frobnicate yes")
			c.add(" server s%d %s:80%s weight %d%s", k, host, check, weight, params)
			server := c.states(bind, fmt.Sprintf("server %q", fmt.Sprintf("s%d", k)), of(addr, port, hasServer(host, weight)))
			if check != "" {
				asked := c.states(server, "check", of(addr, port, func(s *source.Service) bool { return hasCheck(kind)(s) || len(s.Endpoints) == 0 }))
				if steps != nil {
					steps.with = asked
				}
			}
			if params != "" {
				c.states(server, strings.Fields(params)[0], nil)
			}
		}
	}
}

func iptablesConfig(c *config) {
	c.add("*nat\n-A PREROUTING -j MINE")
	for i := range 4 + c.IntN(8) {
		chain := pick(c, "PREROUTING", "PREROUTING", "PREROUTING", "MINE", "MINE", "OUTPUT", "NOWHERE")
		addr, port := fmt.Sprintf("192.0.2.%d", i+1), 80+i
		match, word := pick(c, "", "", "", "", "-i wan0 ", "-m mark --mark 0x1 ", "-m state --state NEW ", "! -s 10.0.0.0/8 "), "DNAT"
		source := pick(c, "", "", "-s 198.51.100.0/24 ")
		if match == "! -s 10.0.0.0/8 " {
			source = ""
		}
		one := "-d " + addr + "/32 "
		dst := pick(c, one, one, one, one, "-m addrtype --dst-type LOCAL ", "-d 192.0.2.0/24 ")
		if dst == "-m addrtype --dst-type LOCAL " {
			addr = ""
		}
		to := pick(c, "DNAT --to-destination 10.0.0.1:8080", "DNAT --to-destination 10.0.0.1:8080", "DNAT --to-destination 10.0.0.1-10.0.0.3", "REDIRECT --to-ports 81")
		if strings.HasPrefix(to, "REDIRECT") {
			word = "REDIRECT"
		}
		c.add("-A %s %s%s%s-p tcp -m tcp --dport %d -j %s", chain, source, dst, match, port, to)
		ask := hasServer("10.0.0.1", -1)
		rule := c.states(nil, word, of(addr, port, ask))
		if first := rule.line; c.often(3) { // it gets nothing, or less
			dst, at := pick(c, source, one), ""
			if dst == one {
				at = fmt.Sprintf("192.0.2.%d", i+1)
			}
			c.add("-A %s %s-p tcp -m tcp --dport %d -j DNAT --to-destination 10.0.0.7", chain, dst, port)
			c.states(nil, "DNAT", of(at, port, hasServer("10.0.0.7", -1)))
			rule.line = first
		}
		if source != "" {
			c.states(rule, "198.51.100.0/24", of(addr, port, hasRanges("198.51.100.0/24"))).line = rule.line
		}
	}
	if c.often(3) {
		c.add("-A PREROUTING -s 10.9.0.0/16 -j RETURN\n-A PREROUTING -d 192.0.2.99/32 -p tcp -m tcp --dport 9 -j DNAT --to-destination 10.0.0.9")
		c.lines--
		c.states(nil, "RETURN", nil)
		c.lines++
	}
	c.add("COMMIT")
}

func ipvsadmConfig(c *config) {
	for i := range 1 + c.IntN(5) {
		addr, port := fmt.Sprintf("192.0.2.%d", i+1), pick(c, 80, 80, 80, 0)
		kind := pick(c, "-t", "-u", "--sctp-service", "-f")
		where, scheduler := fmt.Sprintf("%s:%d", addr, port), pick(c, "rr", "wlc", "sh")
		if kind == "-f" {
			where = strconv.Itoa(i + 1)
		}
		options, word := pick(c, "", "", " -p 60", " -p 60 -M 255.255.255.0", " --pe sip", " -o"), ""
		c.add("-A %s %s -s %s%s", kind, where, scheduler, options)
		vs := c.states(nil, "left out", of(addr, port, func(s *source.Service) bool { return s.Scheduler == scheduler }))
		switch {
		case strings.HasPrefix(options, " -p"):
			c.states(vs, "keep their endpoint", of(addr, port, hasAffinity(time.Minute)))
			if word = "granularity"; !strings.Contains(options, "-M") {
				word = ""
			}
		case options == " --pe sip":
			word = "persistence engine"
		case options == " -o" && kind != "-u":
			word = "one-packet"
		case options == " -o":
			c.states(vs, "one_packet", of(addr, port, func(s *source.Service) bool { return s.OnePacket }))
		}
		if word != "" {
			c.states(vs, word, nil)
		}
		for k := range 1 + c.IntN(3) {
			host, weight := pick(c, fmt.Sprintf("10.0.0.%d", k+1), "10.0.0.1", "127.0.0.1"), c.IntN(9)
			limits := pick(c, "", "", " -x 100", " -x 10 -y 20")
			c.add("-a %s %s -r %s:%d %s -w %d%s", kind, where, host, port, pick(c, "-m", "-m", "-g"), weight, limits)
			server := c.states(vs, host, of(addr, port, hasServer(host, weight)))
			switch limits {
			case " -x 100":
				c.states(server, "max_connections", of(addr, port, func(s *source.Service) bool {
					return slices.ContainsFunc(s.Endpoints, func(e source.Endpoint) bool { return e.Extras().MaxConnections == 100 })
				}))
			case " -x 10 -y 20":
				c.states(server, "threshold", nil)
			}
		}
	}
}
