package haproxy

import (
	"regexp"
	"slices"
	"strconv"
	"strings"

	"svcproxy.dev/svcproxy/cmd/internal/convert/reader"
	"svcproxy.dev/svcproxy/source"
)

// An httpReader reads a check of HTTP.
type httpReader struct {
	*checkReader
	check     *source.HealthCheck
	tls       bool
	connected bool // by a rule
	sent      bool // by a rule
	ended     bool // what follows is of another request
	status    bool // a rule has been about the status
}

// httpchk reads option httpchk [METHOD] [URI [VERSION [HOST]]] and lines of http-check.
func (r *checkReader) httpchk(c *source.HealthCheck, l reader.Line, tls bool) {
	c.Type, c.Method, c.Path = source.CheckHTTP, "OPTIONS", "/"
	c.ExpectStatus = []source.StatusRange{{First: 200, Last: 399}}
	h := httpReader{checkReader: r, check: c, tls: tls}
	if len(l.Words) == 3 {
		c.Path = l.Arg(2)
	} else if len(l.Words) > 3 {
		c.Method, c.Path = l.Arg(2), l.Arg(3)
		h.version(l, strings.Join(l.Words[4:], " "))
	}
	for _, l := range r.back.nearest("http-check") {
		h.rule(l)
	}
	if h.tls {
		c.Type, c.Insecure = source.CheckHTTPS, true
	} else {
		c.ServerName = ""
	}
	if c.ExpectBody != "" && !h.status { // only without any expect HAProxy looks at the status by itself
		c.ExpectStatus = []source.StatusRange{{First: 100, Last: 599}}
	}
}

// version reads VERSION, VERSION HOST, or what older configurations write: VERSION with headers and a body behind it.
func (r *httpReader) version(l reader.Line, text string) {
	head, body, _ := strings.Cut(text, "\r\n\r\n")
	version, headers, _ := strings.Cut(head, "\r\n")
	version, r.check.Host, _ = strings.Cut(version, " ")
	if version != "" && !strings.HasPrefix(version, "HTTP/") || strings.Contains(text, `\`) {
		r.unsaid(l.At, source.Excerpt(text)+" of option httpchk is left out", "")
	}
	for header := range strings.SplitSeq(headers, "\r\n") {
		if name, value, _ := strings.Cut(header, ":"); name != "" {
			r.header(l, name, strings.TrimSpace(value))
		}
	}
	if body != "" {
		r.unsaid(l.At, "the body of option httpchk is left out", "")
	}
}

// plainHeaders change no answer, as a rule.
var plainHeaders = regexp.MustCompile("(?i)^(accept|accept-.*|cache-control|connection|pragma|user-agent)$")

// header reads a header of the request.
func (r *httpReader) header(l reader.Line, name, value string) {
	if strings.EqualFold(name, "host") {
		r.check.Host = value
		return
	}
	r.Note(l.At, "the header "+source.Excerpt(name)+" of the check is left out", "")
	r.partly = r.partly || !plainHeaders.MatchString(name)
}

// rule reads a line of http-check.
func (r *httpReader) rule(l reader.Line) {
	kind := l.Arg(1)
	r.ended = r.ended || kind == "connect" && (r.connected || r.sent) || kind == "send" && r.sent
	switch {
	case kind == "comment":
	case kind == "disable-on-404":
		r.Note(l.At, "http-check disable-on-404 is left out: 404 is as good as expect_status says", "drain an endpoint before it stops")
	case kind == "send-state":
		r.Note(l.At, "http-check send-state is left out", "")
	case !r.ended && kind == "connect":
		r.connect(l)
	case !r.ended && kind == "send":
		r.send(l)
	case !r.ended && kind == "expect":
		r.expect(l)
	default:
		left := reader.Left{}
		if r.ended {
			left.Why = "a check asks once"
		}
		r.unsaid(l.At, left.Of(l.Text(0)), "")
	}
}

// connect reads http-check connect [default] [port N] [ssl] [sni NAME].
func (r *httpReader) connect(l reader.Line) {
	r.connected = true
	ssl, standard := false, false
	for i := 2; i < len(l.Words); i++ {
		switch word := l.Words[i]; word {
		case "default":
			standard = true
		case "ssl":
			ssl = true
		case "linger":
			r.Note(l.At, "linger of http-check connect is left out", "")
		case "comment":
			i++
		case "port":
			i++
			if n, err := reader.PortOf(l.Arg(i)); err == nil && n != 0 {
				r.check.Port = n
			} else {
				r.unsaid(l.At, "port "+source.Excerpt(l.Arg(i))+" of http-check connect is left out: it is no number", "")
			}
		case "sni":
			i++
			r.check.ServerName = l.Arg(i)
		default:
			r.unsaid(l.At, l.Text(i)+" of http-check connect is left out", "")
			i = len(l.Words)
		}
	}
	r.tls = ssl || standard && r.tls // nothing of the server counts without default
}

// send reads http-check send [meth M] [uri U] [ver V] [hdr NAME VALUE] [body B].
func (r *httpReader) send(l reader.Line) {
	r.sent = true
	for i := 2; i < len(l.Words); i += 2 {
		switch l.Words[i] {
		case "meth":
			r.check.Method = l.Arg(i + 1)
		case "uri":
			r.check.Path = l.Arg(i + 1)
		case "ver", "comment":
		case "hdr":
			r.header(l, l.Arg(i+1), l.Arg(i+2))
			i++
		default:
			r.unsaid(l.At, source.Excerpt(l.Words[i])+" of http-check send is left out", "")
		}
	}
}

// expectWords stand before what is expected, with a value, and say how it is reported.
var expectWords = reader.WordSet("comment min-recv ok-status error-status tout-status on-success on-error status-code")

// expect reads http-check expect [!] status|rstatus|string|rstring PATTERN. The status and the body are read once.
func (r *httpReader) expect(l reader.Line) {
	i := 2
	for expectWords[l.Arg(i)] {
		i += 2
	}
	kind, pattern, not := l.Arg(i), l.Arg(i+1), false
	if not = kind == "!"; not && strings.HasSuffix(pattern, "status") {
		kind, pattern = pattern, l.Arg(i+2)
	}
	ok := false
	switch {
	case strings.HasSuffix(kind, "status"):
		var list []source.StatusRange
		if list, ok = statuses(kind, pattern, not); ok && !r.status {
			r.check.ExpectStatus = list
		}
		ok, r.status = ok && !r.status, true
	case (kind == "string" || kind == "rstring") && r.check.ExpectBody == "":
		ok = true
		if r.check.ExpectBody = reader.Expression(pattern); kind == "string" {
			r.check.ExpectBody = regexp.QuoteMeta(pattern)
		}
	}
	if !ok {
		r.unsaid(l.At, "http-check expect "+l.Text(i)+" is left out", "expect_status and expect_body say what is good")
	}
}

// statuses returns those that status or rstatus takes with a pattern, or all others.
func statuses(kind, pattern string, not bool) (list []source.StatusRange, ok bool) {
	has := func(n uint16) bool {
		return slices.ContainsFunc(list, func(s source.StatusRange) bool { return s.First <= n && n <= s.Last })
	}
	expression, err := regexp.Compile(pattern)
	switch {
	case kind == "status":
		for part := range strings.SplitSeq(pattern, ",") {
			one, ok := reader.StatusRange(part)
			if !ok {
				return nil, false
			}
			list = append(list, one)
		}
		if !not {
			return slices.Clip(list), true
		}
	case kind == "rstatus" && err == nil:
		has = func(n uint16) bool { return expression.MatchString(strconv.Itoa(int(n))) }
	default:
		return nil, false
	}
	var out []source.StatusRange
	for n := uint16(100); n <= 599; n++ {
		switch last := len(out) - 1; {
		case has(n) == not:
		case last >= 0 && out[last].Last == n-1:
			out[last].Last = n
		default:
			out = append(out, source.StatusRange{First: n, Last: n})
		}
	}
	return out, len(out) > 0
}
