package haproxy

import (
	"regexp"
	"slices"
	"strings"

	"svcproxy.dev/svcproxy/cmd/internal/convert/reader"
	"svcproxy.dev/svcproxy/source"
)

// An httpReader reads a check of HTTP.
type httpReader struct {
	*reader.Service
	check     *source.HealthCheck
	tls       bool
	connected bool // by a rule
	sent      bool // by a rule
	ended     bool // what follows is of another request
	status    bool // a rule has been about the status
}

// httpchk reads option httpchk [METHOD] [URI [VERSION]] and lines of http-check.
func httpchk(s *reader.Service, back *section, c *source.HealthCheck, l configLine, tls bool) {
	c.Type, c.Method, c.Path = source.CheckHTTP, "OPTIONS", "/"
	c.ExpectStatus = []source.StatusRange{{First: 200, Last: 399}}
	switch len(l.Words) {
	case 2:
	case 3:
		c.Path = l.Arg(2)
	default:
		c.Method, c.Path = l.Arg(2), l.Arg(3)
		_, header, _ := strings.Cut(strings.Join(l.Words[4:], " "), "\r\nHost:")
		c.Host, _, _ = strings.Cut(strings.TrimSpace(header), "\r\n")
	}
	r := httpReader{Service: s, check: c, tls: tls}
	for _, l := range back.nearest("http-check") {
		r.rule(l)
	}
	if r.tls {
		c.Type, c.Insecure = source.CheckHTTPS, true
	}
	if c.ExpectBody != "" && !r.status { // only without any expect HAProxy looks at the status by itself
		c.ExpectStatus = []source.StatusRange{{First: 100, Last: 599}}
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
	case !r.ended && kind == "connect":
		r.connect(l)
	case !r.ended && kind == "send":
		r.send(l)
	case !r.ended && kind == "expect":
		r.expect(l)
	case r.ended && (kind == "connect" || kind == "send" || kind == "expect"):
		r.Note(l.at, source.Excerpt(strings.Join(l.Words, " "))+" is left out: a check asks once", "an exec check can ask more")
	default:
		r.Note(l.at, "http-check "+source.Excerpt(kind)+" is left out", "")
	}
}

// connect reads http-check connect [default] [port N] [ssl] and notes what else it has.
func (r *httpReader) connect(l configLine) {
	r.connected = true
	ssl, standard := false, false
	for i := 2; i < len(l.Words); i++ {
		switch word := l.Words[i]; word {
		case "default":
			standard = true
		case "ssl":
			ssl = true
		case "comment":
			i++
		case "port":
			i++
			r.port(l, l.Arg(i))
		case "addr", "sni", "alpn", "proto":
			i++
			fallthrough
		default:
			r.Note(l.at, source.Excerpt(word)+" of http-check connect is left out", "")
		}
	}
	r.tls = ssl || standard && r.tls // nothing of the server counts without default
}

// port sets the port that is asked.
func (r *httpReader) port(l configLine, text string) {
	n, err := reader.PortOf(text)
	if err != nil || n == 0 {
		r.Note(l.at, "port "+source.Excerpt(text)+" of http-check connect is left out: it is no number", "")
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
			if strings.EqualFold(l.Arg(i+1), "host") {
				r.check.Host = l.Arg(i + 2)
			} else {
				r.Note(l.at, "the header "+source.Excerpt(l.Arg(i+1))+" of http-check is left out", "")
			}
			i++
		default:
			r.Note(l.at, source.Excerpt(l.Words[i])+" of http-check send is left out", "")
		}
	}
}

// expectWords stand before what is expected, with a value, and say how it is reported.
var expectWords = wordSet("comment min-recv ok-status error-status tout-status on-success on-error status-code")

// expect reads http-check expect status|string|rstring PATTERN. Each is read once.
func (r *httpReader) expect(l configLine) {
	i := 2
	for expectWords[l.Arg(i)] {
		i += 2
	}
	match, pattern, again := l.Arg(i), l.Arg(i+1), false
	switch match {
	case "status":
		if again = r.status; !again {
			r.expectStatus(l, pattern)
		}
	case "string", "rstring":
		if again = r.check.ExpectBody != ""; again {
			break
		}
		if r.check.ExpectBody = pattern; match == "string" {
			r.check.ExpectBody = regexp.QuoteMeta(pattern)
		}
	default:
		again = true
	}
	r.status = r.status || strings.HasSuffix(match, "status") || strings.HasPrefix(match, "!")
	if again {
		r.Note(l.at, "http-check expect "+source.Excerpt(strings.Join(l.Words[min(i, len(l.Words)):], " "))+" is left out", "expect_status and expect_body say what is good")
	}
}

// expectStatus reads numbers and ranges of statuses.
func (r *httpReader) expectStatus(l configLine, text string) {
	var list []source.StatusRange
	for part := range strings.SplitSeq(text, ",") {
		statuses, ok := reader.StatusRange(part)
		if !ok {
			r.Note(l.at, "http-check expect status "+source.Excerpt(part)+" is left out", "")
			continue
		}
		list = append(list, statuses)
	}
	if list != nil {
		r.check.ExpectStatus = slices.Clip(list)
	}
}
