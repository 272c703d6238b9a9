package keepalived

import (
	"encoding/binary"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"svcproxy.dev/svcproxy/source"
)

// udp reads what is sent and what must come back: a regular expression for an answer that begins with these bytes.
func (r *checkReader) udp(c *source.HealthCheck) bool {
	reply := false
	for _, s := range r.node.sub {
		text := strings.Join(s.Words[1:], "")
		switch s.key() {
		case "payload":
			c.Send = hexBytes(strings.Join(s.Words[1:], " "))
		case "require_reply":
			reply = true
			if c.Expect = ""; text == "" {
				continue
			}
			if want := hexBytes(text); !strings.ContainsFunc(want, notPlain) && !strings.ContainsAny(text, "xX") {
				c.Expect = "^" + regexp.QuoteMeta(want)
			} else {
				r.leaveOut(s.At, "the answer that require_reply wants is left out: any will do", "expect is a regular expression of text")
			}
		case "min_reply_length", "max_reply_length":
			r.leaveOut(s.At, s.key()+" is left out", "expect is a regular expression of the answer")
		}
	}
	if !reply || c.Send == "" {
		r.leaveOut(r.node.At, "UDP_CHECK is left out: a check asks something and waits for the answer", `write health_check = { type = "udp", send = "...", expect = "..." }`)
		return false
	}
	return true
}

// notPlain reports whether a character is none of printable ASCII.
func notPlain(c rune) bool { return c < ' ' || c > '~' }

// hexBytes reads hexadecimal digits: two make a byte, or one before a blank.
func hexBytes(text string) string {
	var out []byte
	for _, word := range strings.Fields(text) {
		for digits := range slices.Chunk([]byte(word), 2) {
			var b byte
			if _, err := fmt.Sscanf(string(digits), "%x", &b); err != nil {
				return string(out)
			}
			out = append(out, b)
		}
	}
	return string(out)
}

// dnsTypes are the types of records that DNS_CHECK asks for, by their numbers in RFC 1035 and 3596.
var dnsTypes = map[string]uint16{"A": 1, "NS": 2, "CNAME": 5, "SOA": 6, "MX": 15, "TXT": 16, "AAAA": 28}

// dns makes the question of DNS_CHECK, of RFC 1035, section 4.1, which asks for recursion. Any answer to it will do.
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
	number, ok := dnsTypes[kind]
	ok = ok && len(name) < 254
	b := []byte{'s', 'v', 1, 0, 0, 1, 0, 0, 0, 0, 0, 0}
	if labels := strings.Trim(name, "."); labels != "" {
		for part := range strings.SplitSeq(labels, ".") {
			ok = ok && part != "" && len(part) < 64
			b = append(append(b, byte(len(part))), part...)
		}
	}
	if !ok {
		r.leaveOut(r.node.At, "DNS_CHECK is left out: type "+source.Excerpt(kind)+" or name "+source.Excerpt(name)+" is none", "")
		return false
	}
	b = binary.BigEndian.AppendUint16(append(b, 0), number)
	c.Send = string(binary.BigEndian.AppendUint16(b, 1))
	r.Note(r.node.At, "of DNS_CHECK any answer will do, also one that there is no such name", "")
	return true
}
