package haproxy

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"svcproxy.dev/svcproxy/cmd/internal/convert/reader"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/decode"
)

// A serverCheck is what a server says of its check.
type serverCheck struct {
	interval, down time.Duration
	rise, fall     uint8
	port           uint16 // 0: that of the server
	tls            bool
	name           string // of the certificate
}

// A checkReader makes a check of what each server says of its own.
type checkReader struct {
	*reader.Service
	back            *section
	asked           map[bool]*source.HealthCheck // what is asked, without TLS and with it
	known           map[serverCheck]*source.HealthCheck
	connect, answer configLine // timeouts
	checked         []reader.Checked
	partly          bool // what is left out decides whether it passes: a comment
}

// unsaid notes a part of the check without which it means something else.
func (r *checkReader) unsaid(at reader.Position, msg, hint string) {
	r.Note(at, msg, hint)
	r.partly = true
}

// asksOtherwise are parameters by which the check of a server asks something else than what clients use.
var asksOtherwise = []string{"addr", "check-alpn", "check-proto", "check-send-proxy", "check-via-socks4", "healthcheck"}

func newCheckReader(s *reader.Service, back *section) *checkReader {
	r := &checkReader{Service: s, back: back, asked: map[bool]*source.HealthCheck{}, known: map[serverCheck]*source.HealthCheck{}}
	r.connect, _ = back.last("timeout", "connect")
	r.answer, _ = back.last("timeout", "check")
	return r
}

// add takes up a server that serves at a port.
func (r *checkReader) add(p proxyServer, own uint16) {
	out := reader.Checked{At: p.at, Name: p.title()}
	if p.params["check"] != "" {
		c := serverCheck{rise: r.count(p, "rise", 2), fall: r.count(p, "fall", 3), tls: p.params["check-ssl"] != "", name: p.params["check-sni"]}
		c.interval = r.time(p.at, "inter", p.params["inter"], 2*time.Second)
		c.down = r.time(p.at, "downinter", p.params["downinter"], c.interval)
		asks := r.asks(c.tls)
		n, err := reader.PortOf(p.params["port"])
		if err != nil {
			r.unsaid(p.at, "the port of "+p.title()+" is left out: "+err.Error(), "")
		}
		if c.port = cmp.Or(asks.Port, n); c.port == own {
			c.port = 0
		}
		if asks.Type != source.CheckHTTPS {
			c.name = ""
		}
		r.others(p, asks)
		if r.known[c] == nil {
			r.known[c] = r.read(c, *asks)
		}
		out.Check = r.known[c]
	}
	r.checked = append(r.checked, out)
}

// others notes parameters of a server that its check does not have.
func (r *checkReader) others(p proxyServer, asks *source.HealthCheck) {
	for _, key := range asksOtherwise { // which have notes of their own
		r.partly = r.partly || p.params[key] != ""
	}
	for _, key := range []string{"send-proxy", "send-proxy-v2", "send-proxy-v2-ssl", "send-proxy-v2-ssl-cn"} {
		if p.params[key] != "" && p.params["port"] == "" && (asks.Type != source.CheckTCP || asks.Send+asks.Expect != "") {
			r.unsaid(p.at, "the check of "+p.title()+" lacks the header of "+key, "")
		}
	}
	if asks.Type != source.CheckHTTPS {
		return
	}
	if p.params["crt"] != "" {
		r.unsaid(p.at, "crt of "+p.title()+" is left out: the check has no certificate of its own", "")
	}
	for _, key := range []string{"verify", "verifyhost", "ca-file"} {
		if value := p.params[key]; value != "" && p.params["verify"] != "none" {
			r.Note(p.at, source.Excerpt(key+" "+value)+" of servers is left out: the check takes any certificate",
				"verify = true and server_name of health_check have it verified, by the authorities that this host knows")
		}
	}
}

// set sets the check of the service. Where no server is checked, it notes the lines that describe the check.
func (r *checkReader) set() {
	if len(r.known) == 0 {
		for _, l := range r.back.lines {
			_, known := protocolChecks[l.Arg(1)]
			if l.is("tcp-check") || l.is("http-check") || l.is("option") && (known || l.Arg(1) == "httpchk" || l.Arg(1) == "tcp-check") {
				r.Note(l.at, "what is written of a check is left out: no server that is an endpoint has the word check", "")
			}
		}
	}
	if r.SetCheck(r.checked); r.partly && r.HealthCheck != nil {
		r.Checks, r.HealthCheck = []*source.HealthCheck{r.HealthCheck}, nil
		for _, at := range r.Asked {
			r.Note(at, "the check is a comment: what is left out of it decides whether it passes", "an exec check can ask more")
		}
	}
}

// read makes a check of a request. HAProxy connects for no longer than inter, whatever timeout check says.
func (r *checkReader) read(of serverCheck, c source.HealthCheck) *source.HealthCheck {
	c.Refuse, c.Port, c.Interval, c.IntervalDown, c.Rise, c.Fall = true, of.port, of.interval, of.down, of.rise, of.fall
	c.ServerName = cmp.Or(c.ServerName, of.name)
	c.Timeout = min(r.time(r.connect.at, "timeout connect", r.connect.Arg(2), c.Interval), c.Interval)
	if d := r.time(r.answer.at, "timeout check", r.answer.Arg(2), c.Timeout); d != c.Timeout && (c.Type != source.CheckTCP || c.Send+c.Expect != "") {
		r.Note(r.answer.at, fmt.Sprintf("timeout check is left out: connecting and the answer have %s together", decode.ShortDuration(c.Timeout)),
			fmt.Sprintf("write timeout = %q where answers take longer, and dead hosts may be noticed later", decode.ShortDuration(c.Timeout+d)))
	}
	return &c
}

// count reads how many results in a row change the state of a server.
func (r *checkReader) count(p proxyServer, key string, standard uint8) uint8 {
	text := p.params[key]
	if text == "" {
		return standard
	}
	n, err := strconv.ParseUint(text, 10, 31)
	if err == nil && n > 0 && n <= 255 {
		return uint8(n)
	}
	if err == nil && n > 0 {
		standard = 255
	}
	r.Note(p.at, fmt.Sprintf("%s of %s is %d, not %s", key, p.title(), standard, source.Excerpt(text)), "")
	return standard
}

// time reads a time of a check.
func (r *checkReader) time(at reader.Position, key, text string, standard time.Duration) time.Duration {
	if text == "" {
		return standard
	}
	d, err := haproxyTime(text)
	if err == nil {
		standard = max(source.MinCheckTime, min(source.MaxCheckTime, d))
	}
	if standard != d {
		r.Note(at, fmt.Sprintf("%s is %s, not %s", key, decode.ShortDuration(standard), source.Excerpt(text)), "")
	}
	return standard
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

// asks returns the request of a check and the answer that it expects. It reads them once, with TLS and without.
func (r *checkReader) asks(tls bool) *source.HealthCheck {
	c := r.asked[tls]
	if c != nil {
		return c
	}
	c = &source.HealthCheck{Type: source.CheckTCP}
	r.asked[tls] = c
	l, found := r.back.checkOption()
	switch kind := l.Arg(1); {
	case kind == "httpchk":
		r.httpchk(c, l, tls)
		return c
	case kind == "tcp-check":
		r.tcpCheck(c)
	case kind == "external-check" || kind == "spop-check":
		r.unsaid(l.at, "option "+kind+" is left out", "")
	case found:
		asks := protocolChecks[kind]
		if c.Send, c.Expect = asks.send, asks.expect; c.Expect == "" {
			r.Note(l.at, "option "+kind+" is left out: the check only connects", "an exec check can ask more")
		}
	}
	if tls {
		r.Note(r.back.at, "check-ssl is left out: the check does not speak TLS", "")
		r.partly = r.partly || c.Send+c.Expect != ""
	}
	return c
}

// tcpCheck joins what the steps of tcp-check send to one text, and what they expect to one expression. The check becomes a
// comment where the joined steps would mean something else.
func (r *checkReader) tcpCheck(c *source.HealthCheck) {
	var send, expect []string
	last := configLine{}
	steps := r.back.nearest("tcp-check")
	lastExpect := 0
	for i, l := range steps {
		if l.is("tcp-check", "expect") {
			lastExpect = i
		}
	}
	for i, l := range steps {
		words := beforeComment(l)
		pattern, ok := expected(words)
		switch {
		case l.is("tcp-check", "comment"):
			continue
		case l.is("tcp-check", "connect") && last.Words == nil && (len(words) == 2 || len(words) == 4 && words[2] == "port"):
			c.Port, _ = reader.PortOf(words.Arg(3))
		case l.is("tcp-check", "send") && len(words) == 3 && (len(send) > 0 || len(expect) == 0):
			send = append(send, l.Arg(2))
		case l.is("tcp-check", "send") && len(words) == 3: // where only what follows matters
			r.Note(l.at, source.Excerpt(strings.Join(l.Words, " "))+" is left out: a check sends before it expects", "")
			r.partly = r.partly || i < lastExpect
		case ok && (len(expect) == 0 || !strings.HasPrefix(pattern, "^") && !strings.HasSuffix(expect[len(expect)-1], "$")):
			expect = append(expect, pattern)
		default:
			r.unsaid(l.at, source.Excerpt(strings.Join(l.Words, " "))+" is left out: a check sends once and expects once", "")
		}
		last = l
	}
	if c.Send = strings.Join(send, ""); len(expect) > 1 {
		c.Expect = "(?s)" + strings.Join(expect, ".*")
	} else if len(expect) == 1 {
		c.Expect = expect[0]
	}
}

// beforeComment returns the words of a rule without its comment.
func beforeComment(l configLine) reader.Words {
	if i := slices.Index(l.Words, "comment"); i > 1 && i == len(l.Words)-2 {
		return l.Words[:i]
	}
	return l.Words
}

// expected returns a regular expression of what tcp-check expects.
func expected(words reader.Words) (string, bool) {
	if len(words) != 4 || words[1] != "expect" || words[3] == "" {
		return "", false
	}
	switch words[2] {
	case "string":
		return regexp.QuoteMeta(words[3]), true
	case "rstring":
		text := reader.Expression(words[3])
		_, err := regexp.Compile(text)
		return text, err == nil
	}
	return "", false
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
