package convert

import (
	"regexp"
	"strconv"
	"strings"

	"svcproxy.dev/svcproxy/source"
)

func quoteMeta(text string) string { return regexp.QuoteMeta(text) }

// httpchk reads option httpchk [METHOD] [URI [VERSION]] and lines of http-check.
func (s *Service) httpchk(back *section, c *source.HealthCheck, l configLine) {
	c.Method, c.Path = "OPTIONS", "/"
	c.ExpectStatus = []source.StatusRange{{First: 200, Last: 399}}
	switch len(l.words) {
	case 2:
	case 3:
		c.Path = l.arg(2)
	default:
		c.Method, c.Path = l.arg(2), l.arg(3)
		_, header, found := strings.Cut(strings.Join(l.words[4:], " "), "\r\nHost:")
		if found {
			c.Host, _, _ = strings.Cut(strings.TrimSpace(header), "\r\n")
		}
	}
	for _, l := range back.all("http-check") {
		switch l.arg(1) {
		case "send":
			s.httpSend(c, l)
		case "expect":
			s.httpExpect(c, l)
		case "connect", "comment", "disable-on-404", "send-state":
		default:
			s.note(l.at, "http-check "+source.Excerpt(l.arg(1))+" is left out", "")
		}
	}
}

// httpSend reads http-check send [meth M] [uri U] [ver V] [hdr NAME VALUE] [body B].
func (s *Service) httpSend(c *source.HealthCheck, l configLine) {
	for i := 2; i < len(l.words); i += 2 {
		switch l.words[i] {
		case "meth":
			c.Method = l.arg(i + 1)
		case "uri":
			c.Path = l.arg(i + 1)
		case "ver":
		case "hdr":
			if strings.EqualFold(l.arg(i+1), "host") {
				c.Host = l.arg(i + 2)
			} else {
				s.note(l.at, "the header "+source.Excerpt(l.arg(i+1))+" of http-check is left out", "")
			}
			i++
		default:
			s.note(l.at, source.Excerpt(l.words[i])+" of http-check send is left out", "")
		}
	}
}

// httpExpect reads http-check expect status|rstatus|string|rstring PATTERN.
func (s *Service) httpExpect(c *source.HealthCheck, l configLine) {
	switch l.arg(2) {
	case "status":
		var list []source.StatusRange
		for part := range strings.SplitSeq(l.arg(3), ",") {
			first, last, isRange := strings.Cut(part, "-")
			if !isRange {
				last = first
			}
			a, err := strconv.ParseUint(first, 10, 16)
			b, err2 := strconv.ParseUint(last, 10, 16)
			if err != nil || err2 != nil || a < 100 || b > 599 || a > b {
				s.note(l.at, "http-check expect status "+source.Excerpt(part)+" is left out", "")
				continue
			}
			list = append(list, source.StatusRange{First: uint16(a), Last: uint16(b)})
		}
		if list != nil {
			c.ExpectStatus = list
		}
	case "string":
		c.ExpectBody = quoteMeta(l.arg(3))
	case "rstring":
		c.ExpectBody = l.arg(3)
	default:
		s.note(l.at, "http-check expect "+source.Excerpt(l.arg(2))+" is left out", "expect_status and expect_body say what is good")
	}
}
