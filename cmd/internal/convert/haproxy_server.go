package convert

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"svcproxy.dev/svcproxy/source"
)

// serverFlags are parameters of a server without a value.
var serverFlags = []string{"check", "backup", "disabled", "enabled", "ssl", "send-proxy", "send-proxy-v2", "send-proxy-v2-ssl", "send-proxy-v2-ssl-cn", "check-ssl", "check-send-proxy",
	"no-check", "no-backup", "non-stick", "tfo", "allow-0rtt", "no-ssl", "no-send-proxy", "no-check-ssl", "stick", "no-verifyhost", "force-tlsv12", "force-tlsv13"}

// A proxyServer is a server line with what default-server lines say before it.
type proxyServer struct {
	at      place
	name    string
	address string
	params  map[string]string // flags have "yes"
}

// readServers returns the servers of a section.
func readServers(s *section) (list []proxyServer) {
	standard := map[string]string{}
	for _, l := range s.all("default-server") {
		setParams(standard, l.words[1:])
	}
	for _, l := range s.lines {
		if !l.is("server") {
			continue
		}
		p := proxyServer{at: l.at, name: l.arg(1), address: l.arg(2), params: map[string]string{}}
		for k, v := range standard {
			p.params[k] = v
		}
		setParams(p.params, l.words[min(3, len(l.words)):])
		list = append(list, p)
	}
	return list
}

// maxParams is more than all parameters that there are.
const maxParams = 200

func setParams(to map[string]string, words []string) {
	for i := 0; i < len(words) && len(to) < maxParams; i++ {
		switch name, off := strings.CutPrefix(words[i], "no-"); {
		case off:
			delete(to, name)
		case slices.Contains(serverFlags, words[i]):
			to[words[i]] = "yes"
		case i+1 < len(words):
			to[words[i]] = words[i+1]
			i++
		default:
			to[words[i]] = ""
		}
	}
}

// haproxyServers makes endpoints of servers.
func (s *Service) haproxyServers(back *section) {
	_, all := back.last("option", "allbackups")
	backups := 0
	var checked, unchecked []proxyServer
	for _, p := range readServers(back) {
		e, ok := s.haproxyEndpoint(p)
		if !ok {
			continue
		}
		if p.params["backup"] != "" {
			e.Tier = 1
			if !all { // they stand in for each other, in their order
				backups++
				e.Tier = uint8(min(backups, source.MaxTier))
			}
		}
		s.Endpoints = append(s.Endpoints, e)
		if p.params["check"] != "" {
			checked = append(checked, p)
		} else {
			unchecked = append(unchecked, p)
		}
	}
	commonTargets(s.Service)
	if len(checked) == 0 {
		return
	}
	s.HealthCheck = s.haproxyCheck(back, checked[0])
	same := map[string]bool{checkKey(checked[0]): true} // by what tells checks of a section apart
	for _, p := range checked[1:] {
		key := checkKey(p)
		if _, known := same[key]; !known {
			same[key] = s.HealthCheck.Equal((&Service{Service: s.Service, all: &Result{}}).haproxyCheck(back, p))
		}
		if !same[key] {
			s.note(p.at, "the check of server "+source.Excerpt(p.name)+" is left out: the first one of the service differs, and is of all", "make it a service of its own")
		}
	}
	for _, p := range unchecked {
		s.note(p.at, "server "+source.Excerpt(p.name)+" has no check, and gets that of the others", "")
	}
}

// checkKey returns what of a server its check depends on.
func checkKey(p proxyServer) string {
	var b strings.Builder
	for _, key := range []string{"inter", "downinter", "rise", "fall", "port", "check-ssl"} {
		fmt.Fprintf(&b, "%q ", p.params[key])
	}
	return b.String()
}

// haproxyEndpoint makes an endpoint of a server, unless it can be none.
func (s *Service) haproxyEndpoint(p proxyServer) (source.Endpoint, bool) {
	a, number, err := serverAddr(p.address)
	if err == nil {
		if why := source.Unusable(a); why != "" {
			err = fmt.Errorf("%s is %s", a, why)
		}
	}
	if err == nil && p.params["ssl"] != "" {
		err = fmt.Errorf("it is spoken to over TLS, which svcproxy does not begin")
	}
	if err != nil {
		s.note(p.at, "server "+source.Excerpt(p.name)+" is left out: "+err.Error(), "")
		return source.Endpoint{}, false
	}
	e := endpoint(a)
	e.Ports = map[string]uint16{}
	for _, port := range s.Ports {
		if n := number(port.Port); n != 0 {
			e.Ports[port.Name] = n
		}
	}
	e.Disabled = p.params["disabled"] != ""
	if text := p.params["weight"]; text != "" {
		if n, err := strconv.ParseUint(text, 10, 16); err == nil {
			e.Weight = uint16(n)
		}
	}
	s.haproxyParams(p)
	return e, true
}

// haproxyParams takes over what is of the whole service, and notes what is left out.
func (s *Service) haproxyParams(p proxyServer) {
	if d, err := haproxyTime(p.params["slowstart"]); err == nil {
		s.SlowStart = min(d, source.MaxSlowStart)
	}
	if p.params["on-marked-down"] == "shutdown-sessions" {
		s.CloseConnections = source.CloseFailed
	}
	for _, left := range leftParams {
		if _, has := p.params[left.key]; has {
			s.note(p.at, left.key+" of servers is left out", left.hint)
		}
	}
}

const seeClients = `endpoints see the address of clients with masquerade = "never" in svcproxy.toml, where their answers come back through this host`

// leftParams are parameters of servers that are left out.
var leftParams = []struct{ key, hint string }{
	{"maxconn", "limit connections in the server itself"},
	{"send-proxy", seeClients}, {"send-proxy-v2", seeClients}, {"send-proxy-v2-ssl", seeClients}, {"check-send-proxy", ""},
	{"track", ""}, {"source", ""}, {"fastinter", ""}, {"resolvers", ""}, {"on-marked-up", ""},
	{"observe", "health checks ask endpoints themselves"}, {"agent-check", "an exec check can ask an agent"}, {"addr", "each endpoint is asked itself"},
}

// serverAddr reads the address of a server, and how its port follows from that of the service: its
// own, the same, or the same and a number more or less.
func serverAddr(text string) (a netip.Addr, number func(uint16) uint16, err error) {
	text = strings.TrimPrefix(strings.TrimPrefix(text, "ipv4@"), "ipv6@")
	number = func(n uint16) uint16 { return n }
	if a, err := netip.ParseAddr(strings.Trim(text, "[]")); err == nil {
		return a, number, nil
	}
	i := strings.LastIndexByte(text, ':')
	if i < 0 {
		return a, nil, fmt.Errorf("%s is no address: nothing is looked up by name", source.Excerpt(text))
	}
	if a, err = netip.ParseAddr(strings.Trim(text[:i], "[]")); err != nil {
		return a, nil, fmt.Errorf("%s is no address: nothing is looked up by name", source.Excerpt(text[:i]))
	}
	port := text[i+1:]
	n, err := strconv.Atoi(port)
	if err != nil || n > 65535 || n < -65535 {
		return a, nil, fmt.Errorf("%s is no port", source.Excerpt(port))
	}
	if strings.HasPrefix(port, "+") || n < 0 {
		number = func(from uint16) uint16 { return uint16(max(0, min(65535, int(from)+n))) }
	} else if n != 0 {
		number = func(uint16) uint16 { return uint16(n) }
	}
	return a, number, nil
}

// haproxyTime reads a time: milliseconds where no unit is written.
func haproxyTime(text string) (time.Duration, error) {
	digits := strings.TrimRight(text, "usmhd")
	units := map[string]time.Duration{"": time.Millisecond, "us": time.Microsecond, "ms": time.Millisecond, "s": time.Second, "m": time.Minute, "h": time.Hour, "d": 24 * time.Hour}
	unit, known := units[text[len(digits):]]
	n, err := strconv.ParseUint(digits, 10, 31)
	if err != nil || !known {
		return 0, fmt.Errorf("%s is no time", source.Excerpt(text))
	}
	if d := time.Duration(n); d <= time.Duration(1<<62)/unit {
		return d * unit, nil
	}
	return 1 << 62, nil
}

// haproxyCheck returns the check of a server.
func (s *Service) haproxyCheck(back *section, p proxyServer) *source.HealthCheck {
	c := &source.HealthCheck{Type: source.CheckTCP, Refuse: true, Rise: 2, Fall: 3}
	c.Interval = checkTime(p.params["inter"], 2*time.Second)
	c.IntervalDown = checkTime(p.params["downinter"], c.Interval)
	connect, _ := back.last("timeout", "connect")
	c.Timeout = min(checkTime(connect.arg(2), c.Interval), c.Interval)
	if l, found := back.last("timeout", "check"); found {
		c.Timeout = checkTime(l.arg(2), c.Timeout)
	}
	c.Rise, c.Fall = inARow(p.params["rise"], c.Rise), inARow(p.params["fall"], c.Fall)
	if n, err := portOf(p.params["port"]); err == nil && n != s.EndpointAt(&s.Endpoints[0]).Port() {
		c.Port = n
	}
	s.haproxyAsks(back, c, p.params["check-ssl"] != "")
	return c
}

func inARow(text string, standard uint8) uint8 {
	n, err := strconv.ParseUint(text, 10, 31)
	if err != nil || n == 0 {
		return standard
	}
	return uint8(min(n, 255))
}

func checkTime(text string, standard time.Duration) time.Duration {
	d, err := haproxyTime(text)
	if err != nil {
		return standard
	}
	return max(source.MinCheckTime, min(source.MaxCheckTime, d))
}

// haproxyAsks reads what is asked and what must be answered.
func (s *Service) haproxyAsks(back *section, c *source.HealthCheck, tls bool) {
	if l, found := back.last("option", "httpchk"); found {
		s.httpchk(back, c, l)
		if c.Type = source.CheckHTTP; tls {
			c.Type, c.Insecure = source.CheckHTTPS, true
		}
		return
	}
	if tls {
		s.note(back.at, "check-ssl is left out: the check only connects", "")
	}
	for _, o := range []struct{ option, send, expect string }{
		{"smtpchk", "", "^220"}, {"redis-check", "PING\r\n", `^\+PONG`},
		{"mysql-check", "", ""}, {"pgsql-check", "", ""}, {"ldap-check", "", ""}, {"ssl-hello-chk", "", ""}, {"external-check", "", ""},
	} {
		l, found := back.last("option", o.option)
		if !found {
			continue
		}
		if c.Send, c.Expect = o.send, o.expect; o.expect == "" {
			s.note(l.at, "option "+o.option+" is left out: the check only connects", "an exec check can ask more")
		}
	}
	s.tcpCheck(back, c)
}

// tcpCheck reads what is sent and expected, once each.
func (s *Service) tcpCheck(back *section, c *source.HealthCheck) {
	for _, l := range back.all("tcp-check") {
		switch {
		case l.is("tcp-check", "connect") && len(l.words) == 2, l.is("tcp-check", "comment"):
		case l.is("tcp-check", "send") && c.Send == "" && len(l.words) == 3:
			c.Send = l.arg(2)
		case l.is("tcp-check", "expect", "string") && c.Expect == "":
			c.Expect = quoteMeta(l.arg(3))
		case l.is("tcp-check", "expect", "rstring") && c.Expect == "":
			c.Expect = l.arg(3)
		default:
			s.note(l.at, source.Excerpt(strings.Join(l.words, " "))+" is left out: a check sends once and expects once", "an exec check can ask more")
		}
	}
}
