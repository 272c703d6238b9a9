package haproxy

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"svcproxy.dev/svcproxy/cmd/internal/convert/reader"
	"svcproxy.dev/svcproxy/source"
)

// A serverCheck is what a server says of its check.
type serverCheck struct {
	interval, down time.Duration
	rise, fall     uint8
	port           uint16 // 0: that of the server
	tls            bool
}

// A checkedServer is a server that is an endpoint.
type checkedServer struct {
	at      reader.Position
	name    string
	checked bool
	check   serverCheck
}

func checkOf(p proxyServer) serverCheck {
	c := serverCheck{rise: inARow(p.params["rise"], 2), fall: inARow(p.params["fall"], 3), tls: p.params["check-ssl"] != ""}
	c.interval = checkTime(p.params["inter"], 2*time.Second)
	c.down = checkTime(p.params["downinter"], c.interval)
	c.port, _ = reader.PortOf(p.params["port"])
	return c
}

// addChecks makes a check of that of the first server which has one.
func addChecks(s *reader.Service, back *section, servers []checkedServer) {
	i := slices.IndexFunc(servers, func(p checkedServer) bool { return p.checked })
	if i < 0 {
		return
	}
	own := s.EndpointAt(&s.Endpoints[0]).Port()
	for i := range servers {
		if c := &servers[i].check; c.port == own {
			c.port = 0
		}
	}
	first := servers[i].check
	fixed := addCheck(s, back, first)
	for _, p := range servers[i:] {
		if fixed.port {
			p.check.port = first.port
		}
		if fixed.tls {
			p.check.tls = first.tls
		}
		if p.checked && p.check != first {
			s.Note(p.at, "the check of server "+source.Excerpt(p.name)+" is left out: the first one of the service differs, and is of all", "make it a service of its own")
		}
	}
	for _, p := range servers {
		if !p.checked {
			s.Note(p.at, "server "+source.Excerpt(p.name)+" has no check, and gets that of the others", "")
		}
	}
}

// addCheck sets the check, which is that of a server.
func addCheck(s *reader.Service, back *section, of serverCheck) fixed {
	c := &source.HealthCheck{Type: source.CheckTCP, Refuse: true, Port: of.port, Interval: of.interval, IntervalDown: of.down, Rise: of.rise, Fall: of.fall}
	connect, _ := back.last("timeout", "connect")
	c.Timeout = min(checkTime(connect.Arg(2), c.Interval), c.Interval)
	if l, found := back.last("timeout", "check"); found {
		c.Timeout = checkTime(l.Arg(2), c.Timeout)
	}
	s.HealthCheck = c
	return asks(s, back, c, of.tls)
}

// fixed is what of a check does not depend on the server.
type fixed struct{ port, tls bool }

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

// protocolChecks are options for checks of a protocol, and what is sent and expected; a check without either only connects.
var protocolChecks = map[string]struct{ send, expect string }{
	"smtpchk": {"", "^220"}, "redis-check": {"PING\r\n", `^\+PONG`},
	"mysql-check": {}, "pgsql-check": {}, "ldap-check": {}, "ssl-hello-chk": {}, "external-check": {}, "spop-check": {},
}

// checkOption returns the line that says how servers are checked: the last one of the section, else of its defaults.
func (s *section) checkOption() (configLine, bool) {
	for ; s != nil; s = s.defaults {
		for _, l := range slices.Backward(s.lines) {
			if _, known := protocolChecks[l.Arg(1)]; l.is("option") && (known || l.Arg(1) == "httpchk" || l.Arg(1) == "tcp-check") {
				return l, true
			}
		}
	}
	return configLine{}, false
}

// asks reads what is asked and what must be answered.
func asks(s *reader.Service, back *section, c *source.HealthCheck, tls bool) fixed {
	l, found := back.checkOption()
	switch kind := l.Arg(1); {
	case kind == "httpchk":
		return httpchk(s, back, c, l, tls)
	case kind == "tcp-check":
		tcpCheck(s, back, c)
	case found:
		asks := protocolChecks[kind]
		if c.Send, c.Expect = asks.send, asks.expect; c.Expect == "" {
			s.Note(l.at, "option "+kind+" is left out: the check only connects", "an exec check can ask more")
		}
	}
	if tls {
		s.Note(back.at, "check-ssl is left out: the check only connects", "")
	}
	return fixed{tls: true}
}

// tcpCheck reads what is sent and expected, once each.
func tcpCheck(s *reader.Service, back *section, c *source.HealthCheck) {
	for _, l := range back.nearest("tcp-check") {
		switch {
		case l.is("tcp-check", "connect") && len(l.Words) == 2, l.is("tcp-check", "comment"):
		case l.is("tcp-check", "send") && c.Send == "" && len(l.Words) == 3:
			c.Send = l.Arg(2)
		case l.is("tcp-check", "expect", "string") && c.Expect == "":
			c.Expect = regexp.QuoteMeta(l.Arg(3))
		case l.is("tcp-check", "expect", "rstring") && c.Expect == "":
			c.Expect = l.Arg(3)
		default:
			s.Note(l.at, source.Excerpt(strings.Join(l.Words, " "))+" is left out: a check sends once and expects once", "an exec check can ask more")
		}
	}
}

// haproxyTime reads a time: milliseconds where no unit is written.
func haproxyTime(text string) (time.Duration, error) {
	digits := strings.TrimRight(text, "usmhd")
	units := map[string]time.Duration{"": time.Millisecond, "us": time.Microsecond, "ms": time.Millisecond, "s": time.Second, "m": time.Minute, "h": time.Hour, "d": 24 * time.Hour}
	unit, known := units[text[len(digits):]]
	n, err := strconv.ParseUint(digits, 10, 31)
	if err != nil || !known {
		return 0, fmt.Errorf("%s is not a duration", source.Excerpt(text))
	}
	if d := time.Duration(n); d <= time.Duration(1<<62)/unit {
		return d * unit, nil
	}
	return 1 << 62, nil
}
