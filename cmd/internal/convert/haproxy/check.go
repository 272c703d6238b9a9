package haproxy

import (
	"cmp"
	"encoding/hex"
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

// A checkReader makes a check of what each server says of its own.
type checkReader struct {
	*reader.Service
	back            *section
	asked           map[bool]*source.HealthCheck // what is asked, without TLS and with it
	connect, answer reader.Line                  // timeouts
	checked         []reader.Checked
	partly          bool // what is left out decides whether it passes: a comment
}

// unsaid notes a part of the check without which it means something else.
func (r *checkReader) unsaid(at reader.Position, msg, hint string) {
	r.Note(at, msg, hint)
	r.partly = true
}

// add takes up a server that serves at a port. HAProxy connects for no longer than inter, whatever timeout check says.
func (r *checkReader) add(p proxyServer, own uint16) {
	out := reader.Checked{At: p.At, Name: p.title()}
	if p.params["check"] != "" {
		c := *r.asks(p.params["check-ssl"] != "")
		c.Refuse, c.Rise, c.Fall = true, r.count(p, "rise", 2), r.count(p, "fall", 3)
		c.Interval = r.CheckTime(p.At, "inter", p.params["inter"], 2*time.Second, haproxyTime)
		c.IntervalDown = r.CheckTime(p.At, "downinter", p.params["downinter"], c.Interval, haproxyTime)
		n, err := reader.PortOf(p.params["port"])
		if err != nil {
			r.unsaid(p.At, "the port of "+p.title()+" is left out: "+err.Error(), "")
		}
		if c.Port = cmp.Or(c.Port, n); c.Port == own {
			c.Port = 0
		}
		if c.Type == source.CheckHTTPS {
			c.ServerName = cmp.Or(c.ServerName, p.params["check-sni"])
		}
		r.others(p, &c)
		c.Timeout = min(r.CheckTime(r.connect.At, "timeout connect", r.connect.Arg(2), c.Interval, haproxyTime), c.Interval)
		if d := r.CheckTime(r.answer.At, "timeout check", r.answer.Arg(2), c.Timeout, haproxyTime); d != c.Timeout && (c.Type != source.CheckTCP || c.Send+c.Expect != "") {
			r.Note(r.answer.At, fmt.Sprintf("timeout check is left out: connecting and the answer have %s together", decode.ShortDuration(c.Timeout)),
				fmt.Sprintf("write timeout = %q where answers take longer, and dead hosts may be noticed later", decode.ShortDuration(c.Timeout+d)))
		}
		out.Check = &c
	}
	r.checked = append(r.checked, out)
}

// asksOtherwise are parameters by which the check of a server asks something else than what clients use.
var asksOtherwise = []string{"addr", "check-alpn", "check-proto", "check-send-proxy", "check-via-socks4", "healthcheck"}

// others notes parameters of a server that its check does not have.
func (r *checkReader) others(p proxyServer, asks *source.HealthCheck) {
	for _, key := range asksOtherwise { // which have notes of their own
		r.partly = r.partly || p.params[key] != ""
	}
	for _, key := range sendProxy {
		if p.params[key] != "" && p.params["port"] == "" && (asks.Type != source.CheckTCP || asks.Send+asks.Expect != "") {
			r.unsaid(p.At, "the check of "+p.title()+" lacks the header of "+key, "")
		}
	}
	if asks.Type != source.CheckHTTPS {
		return
	}
	if p.params["crt"] != "" {
		r.unsaid(p.At, "crt of "+p.title()+" is left out: the check has no certificate of its own", "")
	}
	for _, key := range []string{"verify", "verifyhost", "ca-file"} {
		if value := p.params[key]; value != "" && p.params["verify"] != "none" {
			r.Note(p.At, source.Excerpt(key+" "+value)+" of servers is left out: the check takes any certificate",
				"verify = true and server_name of health_check have it verified, by the authorities that this host knows")
		}
	}
}

// set sets the check of the service. Where no server is checked, it notes the lines that describe the check.
func (r *checkReader) set() {
	if !slices.ContainsFunc(r.checked, func(c reader.Checked) bool { return c.Check != nil }) {
		for _, l := range r.back.lines {
			if l.Is("tcp-check") || l.Is("http-check") || isCheck(l) {
				r.Note(l.At, "what is written of a check is left out: no server that is an endpoint has the word check", "")
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

// count reads how many results in a row change the state of a server.
func (r *checkReader) count(p proxyServer, key string, standard uint8) uint8 {
	text := p.params[key]
	n, err := strconv.ParseUint(text, 10, 31)
	switch {
	case text == "":
		return standard
	case err == nil && n > 0 && n <= 255:
		return uint8(n)
	case err == nil && n > 0:
		standard = 255
	}
	r.Note(p.At, fmt.Sprintf("%s of %s is %d, not %s", key, p.title(), standard, source.Excerpt(text)), "")
	return standard
}

// protocolChecks are options for checks of a protocol, and what is sent and expected; a check without either only connects.
var protocolChecks = map[string]struct{ send, expect string }{
	"smtpchk": {"", "^220"}, "redis-check": {"PING\r\n", `^\+PONG`}, "httpchk": {}, "tcp-check": {},
	"mysql-check": {}, "pgsql-check": {}, "ldap-check": {}, "ssl-hello-chk": {}, "external-check": {}, "spop-check": {},
}

// isCheck reports whether a line says how servers are checked.
func isCheck(l reader.Line) bool {
	_, known := protocolChecks[l.Arg(1)]
	return known && l.Is("option")
}

// asks returns the request of a check and the answer that it expects. It reads them once, with TLS and without.
func (r *checkReader) asks(tls bool) *source.HealthCheck {
	if c := r.asked[tls]; c != nil {
		return c
	}
	c := &source.HealthCheck{Type: source.CheckTCP}
	r.asked[tls] = c
	l, found := r.back.lastOf(isCheck)
	switch kind := l.Arg(1); {
	case kind == "httpchk":
		r.httpchk(c, l, tls)
		return c
	case kind == "tcp-check":
		r.tcpCheck(c)
	case kind == "external-check" || kind == "spop-check":
		r.unsaid(l.At, "option "+kind+" is left out", "")
	case found:
		asks := protocolChecks[kind]
		if c.Send, c.Expect = asks.send, asks.expect; c.Expect == "" {
			r.Note(l.At, "option "+kind+" is left out: the check only connects", "an exec check can ask more")
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
	begun, late := false, false // something is sent after an answer
	for _, l := range r.back.nearest("tcp-check") {
		whole := l
		if i := slices.Index(l.Words, "comment"); i > 1 && i == len(l.Words)-2 {
			l.Words = l.Words[:i]
		}
		pattern, ok := expected(l)
		kind, text := l.Arg(1), l.Arg(2)
		sends := kind == "send" && len(l.Words) == 3
		if kind == "send-binary" && len(l.Words) == 3 {
			text, sends = plainBytes(text)
		}
		r.partly = r.partly || late && kind == "expect" // what is left out is more than the end
		switch {
		case kind == "comment":
			continue
		case kind == "connect" && !begun && (len(l.Words) == 2 || len(l.Words) == 4 && l.Words[2] == "port"):
			c.Port, _ = reader.PortOf(l.Arg(3))
		case sends && (len(send) > 0 || len(expect) == 0):
			send = append(send, text)
		case sends:
			r.Note(l.At, whole.Text(0)+" is left out: a check sends before it expects", "")
			late = true
		case ok && (len(expect) == 0 || !strings.HasPrefix(pattern, "^") && !strings.HasSuffix(expect[len(expect)-1], "$")):
			expect = append(expect, pattern)
		default:
			r.unsaid(l.At, whole.Text(0)+" is left out: a check sends once and expects once", "")
		}
		begun = true
	}
	if c.Send, c.Expect = strings.Join(send, ""), strings.Join(expect, ".*"); len(expect) > 1 {
		c.Expect = "(?s)" + c.Expect
	}
}

// notPlain matches what is neither printable ASCII nor ends lines.
var notPlain = regexp.MustCompile(`[^ -~\t\r\n]`)

// plainBytes returns the text that hexadecimal digits stand for; false: they stand for none.
func plainBytes(digits string) (string, bool) {
	text, err := hex.DecodeString(digits)
	return string(text), err == nil && len(text) > 0 && !notPlain.Match(text)
}

// expected returns a regular expression of what tcp-check expects.
func expected(l reader.Line) (string, bool) {
	if len(l.Words) != 4 || l.Words[1] != "expect" || l.Words[3] == "" {
		return "", false
	}
	switch l.Words[2] {
	case "string":
		return regexp.QuoteMeta(l.Words[3]), true
	case "binary":
		text, ok := plainBytes(l.Words[3])
		return regexp.QuoteMeta(text), ok
	case "rstring":
		text := reader.Expression(l.Words[3])
		_, err := regexp.Compile(text)
		return text, err == nil
	}
	return "", false
}

var units = map[string]time.Duration{"": time.Millisecond, "us": time.Microsecond, "ms": time.Millisecond, "s": time.Second, "m": time.Minute, "h": time.Hour, "d": 24 * time.Hour}

// haproxyTime reads a time: milliseconds where no unit is written.
func haproxyTime(text string) (time.Duration, error) {
	digits := strings.TrimRight(text, "usmhd")
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
