package keepalived

import (
	"encoding/binary"
	"fmt"
	"regexp"
	"strings"

	"svcproxy.dev/svcproxy/source"
)

// udp reads what is sent and what must come back.
func (r *checkReader) udp(c *source.HealthCheck) bool {
	reply := false
	for _, s := range r.node.sub {
		switch s.key() {
		case "payload":
			c.Send = string(hexBytes(strings.Join(s.Words[1:], " ")))
		case "require_reply":
			reply = true
			c.Expect = r.replyExpression(s)
		case "min_reply_length", "max_reply_length":
			r.leaveOut(s.at, s.key()+" is left out", "expect is a regular expression of the answer")
		}
	}
	if !reply || c.Send == "" {
		r.leaveOut(r.node.at, "UDP_CHECK is left out: a check asks something and waits for the answer", `write health_check = { type = "udp", send = "...", expect = "..." }`)
		return false
	}
	return true
}

// replyExpression returns a regular expression for an answer that begins with these bytes.
func (r *checkReader) replyExpression(s *node) string {
	text := strings.Join(s.Words[1:], "")
	if text == "" {
		return ""
	}
	bytes := hexBytes(text)
	if strings.ContainsAny(text, "xX") || strings.ContainsFunc(string(bytes), func(c rune) bool { return c < ' ' || c > '~' }) {
		r.leaveOut(s.at, "the answer that require_reply wants is left out: any will do", "expect is a regular expression of text")
		return ""
	}
	return "^" + regexp.QuoteMeta(string(bytes))
}

// hexBytes reads hexadecimal digits: two make a byte, or one before a blank.
func hexBytes(text string) (out []byte) {
	for _, word := range strings.Fields(text) {
		for len(word) > 0 {
			n := min(2, len(word))
			var b byte
			if _, err := fmt.Sscanf(word[:n], "%x", &b); err != nil {
				return out
			}
			out, word = append(out, b), word[n:]
		}
	}
	return out
}

// dnsTypes are the types of records that DNS_CHECK asks for, by their numbers in RFC 1035 and 3596.
var dnsTypes = map[string]uint16{"A": 1, "NS": 2, "CNAME": 5, "SOA": 6, "MX": 15, "TXT": 16, "AAAA": 28}

// dns makes the question of DNS_CHECK. Any answer to it will do.
func (r *checkReader) dns(c *source.HealthCheck) bool {
	kind, name := "SOA", "."
	for _, s := range r.node.sub {
		switch s.key() {
		case "type":
			kind = strings.ToUpper(s.Arg(1))
		case "name":
			name = s.Arg(1)
		}
	}
	number, known := dnsTypes[kind]
	question, ok := dnsQuestion(name, number)
	if !known || !ok {
		r.leaveOut(r.node.at, "DNS_CHECK is left out: type "+source.Excerpt(kind)+" or name "+source.Excerpt(name)+" is none", "")
		return false
	}
	c.Send = question
	r.Note(r.node.at, "of DNS_CHECK any answer will do, also one that there is no such name", "")
	return true
}

// dnsQuestion returns a question of RFC 1035, section 4.1, that asks for recursion.
func dnsQuestion(name string, kind uint16) (string, bool) {
	b := []byte{'s', 'v', 1, 0, 0, 1, 0, 0, 0, 0, 0, 0}
	for part := range strings.SplitSeq(strings.Trim(name, "."), ".") {
		if len(part) > 63 || part == "" && strings.Trim(name, ".") != "" {
			return "", false
		}
		if part != "" {
			b = append(append(b, byte(len(part))), part...)
		}
	}
	b = binary.BigEndian.AppendUint16(append(b, 0), kind)
	return string(binary.BigEndian.AppendUint16(b, 1)), len(name) < 254
}
