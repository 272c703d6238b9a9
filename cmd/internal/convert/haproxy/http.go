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
func (r *checkReader) httpchk(c *source.HealthCheck, l configLine, tls bool) {
	c.Type, c.Method, c.Path = source.CheckHTTP, "OPTIONS", "/"
	c.ExpectStatus = []source.StatusRange{{First: 200, Last: 399}}
	h := httpReader{checkReader: r, check: c, tls: tls}
	switch len(l.Words) {
	case 2:
	case 3:
		c.Path = l.Arg(2)
	default:
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
func (r *httpReader) version(l configLine, text string) {
	head, body, _ := strings.Cut(text, "\r\n\r\n")
	version, headers, _ := strings.Cut(head, "\r\n")
	version, r.check.Host, _ = strings.Cut(version, " ")
	if version != "" && !strings.HasPrefix(version, "HTTP/") || strings.Contains(text, `\`) {
		r.unsaid(l.at, source.Excerpt(text)+" of option httpchk is left out", "")
	}
	for header := range strings.SplitSeq(headers, "\r\n") {
		if name, value, _ := strings.Cut(header, ":"); name != "" {
			r.header(l, name, strings.TrimSpace(value))
		}
	}
	if body != "" {
		r.unsaid(l.at, "the body of option httpchk is left out", "")
	}
}

// plainHeaders change no answer, as a rule.
var plainHeaders = regexp.MustCompile("(?i)^(accept|accept-.*|cache-control|connection|pragma|user-agent)$")

// header reads a header of the request.
func (r *httpReader) header(l configLine, name, value string) {
	switch {
	case strings.EqualFold(name, "host"):
		r.check.Host = value
	case plainHeaders.MatchString(name):
		r.Note(l.at, "the header "+source.Excerpt(name)+" of the check is left out", "")
	default:
		r.unsaid(l.at, "the header "+source.Excerpt(name)+" of the check is left out", "")
	}
}

// rule reads a line of http-check.
func (r *httpReader) rule(l configLine) {
	kind := l.Arg(1)
	r.ended = r.ended || kind == "connect" && (r.connected || r.sent) || kind == "send" && r.sent
	switch {
	case kind == "comment":
	case kind == "disable-on-404":
		r.Note(l.at, "http-check disable-on-404 is left out: 404 is as good as expect_status says", "drain an endpoint before it stops")
	case kind == "send-state":
		r.Note(l.at, "http-check send-state is left out", "")
	case !r.ended && kind == "connect":
		r.connect(l)
	case !r.ended && kind == "send":
		r.send(l)
	case !r.ended && kind == "expect":
		r.expect(l)
	case r.ended:
		r.unsaid(l.at, source.Excerpt(strings.Join(l.Words, " "))+" is left out: a check asks once", "")
	default:
		r.unsaid(l.at, source.Excerpt(strings.Join(l.Words, " "))+" is left out", "")
	}
}

// connect reads http-check connect [default] [port N] [ssl] [sni NAME].
func (r *httpReader) connect(l configLine) {
	r.connected = true
	ssl, standard := false, false
	for i := 2; i < len(l.Words); i++ {
		switch word := l.Words[i]; word {
		case "default":
			standard = true
		case "ssl":
			ssl = true
		case "linger":
			r.Note(l.at, "linger of http-check connect is left out", "")
		case "comment":
			i++
		case "port":
			i++
			r.port(l, l.Arg(i))
		case "sni":
			i++
			r.check.ServerName = l.Arg(i)
		default:
			r.unsaid(l.at, source.Excerpt(strings.Join(l.Words[i:], " "))+" of http-check connect is left out", "")
			i = len(l.Words)
		}
	}
	r.tls = ssl || standard && r.tls // nothing of the server counts without default
}

// port sets the port that is asked.
func (r *httpReader) port(l configLine, text string) {
	n, err := reader.PortOf(text)
	if err != nil || n == 0 {
		r.unsaid(l.at, "port "+source.Excerpt(text)+" of http-check connect is left out: it is no number", "")
		return
	}
	r.check.Port = n
}

// send reads http-check send [meth M] [uri U] [ver V] [hdr NAME VALUE] [body B].
func (r *httpReader) send(l configLine) {
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
			r.unsaid(l.at, source.Excerpt(l.Words[i])+" of http-check send is left out", "")
		}
	}
}

// expectWords stand before what is expected, with a value, and say how it is reported.
var expectWords = wordSet("comment min-recv ok-status error-status tout-status on-success on-error status-code")

// expect reads http-check expect [!] status|rstatus|string|rstring PATTERN. The status and the body are read once.
func (r *httpReader) expect(l configLine) {
	i := 2
	for expectWords[l.Arg(i)] {
		i += 2
	}
	words := reader.Words(l.Words[min(i, len(l.Words)):])
	ok := false
	switch not := words.Arg(0) == "!"; {
	case strings.HasSuffix(words.Arg(0), "status") || not && strings.HasSuffix(words.Arg(1), "status"):
		var list []source.StatusRange
		if list, ok = statuses(words, not); ok && !r.status {
			r.check.ExpectStatus = list
		}
		ok, r.status = ok && !r.status, true
	case (words.Arg(0) == "string" || words.Arg(0) == "rstring") && r.check.ExpectBody == "":
		ok = true
		if r.check.ExpectBody = reader.Expression(words.Arg(1)); words.Arg(0) == "string" {
			r.check.ExpectBody = regexp.QuoteMeta(words.Arg(1))
		}
	}
	if !ok {
		r.unsaid(l.at, "http-check expect "+source.Excerpt(strings.Join(words, " "))+" is left out", "expect_status and expect_body say what is good")
	}
}

// statuses returns those that [!] status|rstatus PATTERN takes.
func statuses(words reader.Words, not bool) (list []source.StatusRange, ok bool) {
	if not {
		words = words[1:]
	}
	pattern, err := regexp.Compile(words.Arg(1))
	if words.Arg(0) == "status" {
		for part := range strings.SplitSeq(words.Arg(1), ",") {
			one, ok := reader.StatusRange(part)
			if !ok {
				return nil, false
			}
			list = append(list, one)
		}
		if !not {
			return slices.Clip(list), true
		}
	} else if words.Arg(0) != "rstatus" || err != nil {
		return nil, false
	}
	in := func(n uint16) bool {
		if words.Arg(0) == "rstatus" {
			return pattern.MatchString(strconv.Itoa(int(n)))
		}
		return slices.ContainsFunc(list, func(s source.StatusRange) bool { return s.First <= n && n <= s.Last })
	}
	var out []source.StatusRange
	for n := uint16(100); n <= 599; n++ {
		switch last := len(out) - 1; {
		case in(n) == not:
		case last >= 0 && out[last].Last == n-1:
			out[last].Last = n
		default:
			out = append(out, source.StatusRange{First: n, Last: n})
		}
	}
	return out, len(out) > 0
}
