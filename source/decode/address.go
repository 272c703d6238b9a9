package decode

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"unicode"

	"svcproxy.dev/svcproxy/source"
)

// Addr reads an IP address.
var Addr = Kind[netip.Addr]{Read: readAddr, Schema: Schema{Type: "string", Pattern: addrPattern}}

// addrPattern holds no address to what it must be in full: an editor says sooner
// that a name will not do, and check says the rest.
const addrPattern = `^[0-9a-fA-F:.]+$`

func readAddr(r *Reader, v any) (netip.Addr, bool) {
	s, ok := as[string](r, v, "want an IP address as a string")
	if !ok {
		return netip.Addr{}, false
	}
	a, err := netip.ParseAddr(s)
	switch {
	case err != nil:
		r.Fault(source.Excerpt(s)+" is not an IP address", addrHint(s))
	case a.Zone() != "":
		r.Fault(source.Excerpt(s)+" has a zone", "want an address that means the same on every link")
	case a.Is4In6():
		r.Fault(source.Excerpt(s)+" is an IPv4 address written in IPv6", fmt.Sprintf("write %q", a.Unmap()))
	default:
		return a, true
	}
	return netip.Addr{}, false
}

// NodeAddress reads "primary", "all" or a range.
var NodeAddress = Kind[string]{
	Schema: Schema{AnyOf: []Schema{{Enum: []string{source.PrimaryAddresses, source.AllAddresses}}, Prefix.Schema}},
	Read: func(r *Reader, v any) (string, bool) {
		switch v {
		case source.PrimaryAddresses, source.AllAddresses:
			return v.(string), true
		}
		s, isText := v.(string)
		if isText && !strings.ContainsAny(s, "./:") {
			r.Fault("unknown node port addresses "+source.Excerpt(s), `want "primary", "all" or a range such as "10.0.0.0/8"`)
			return "", false
		}
		p, ok := Prefix.Read(r, v)
		if !ok {
			return "", false
		}
		return p.String(), true
	},
}

// Prefix reads a range of addresses, such as "10.0.0.0/8".
var Prefix = Kind[netip.Prefix]{Read: readPrefix, Schema: Schema{Type: "string", Pattern: prefixPattern}}

const prefixPattern = `^[0-9a-fA-F:.]+/[0-9]+$`

func readPrefix(r *Reader, v any) (netip.Prefix, bool) {
	s, ok := as[string](r, v, `want a range as a string, such as "10.0.0.0/8"`)
	if !ok {
		return netip.Prefix{}, false
	}
	p, err := netip.ParsePrefix(s)
	switch {
	case err != nil:
		r.Fault(source.Excerpt(s)+" is not a range of addresses", prefixHint(s))
	case p.Addr().Is4In6():
		r.Fault(source.Excerpt(s)+" is a range of IPv4 addresses written in IPv6", "write it in IPv4")
	case p != p.Masked():
		r.Fault(fmt.Sprintf("%q has bits set behind its length of %d", p, p.Bits()), fmt.Sprintf("write %q", p.Masked()))
	default:
		return p, true
	}
	return netip.Prefix{}, false
}

// addrHint says why a text is not an address, or what to write instead.
func addrHint(s string) string {
	if p, err := netip.ParsePrefix(s); err == nil {
		return fmt.Sprintf("write %q, without the length", p.Addr())
	}
	if ap, err := netip.ParseAddrPort(s); err == nil {
		return fmt.Sprintf("write %q, without the port", ap.Addr())
	}
	if a, err := netip.ParseAddr(strings.Trim(s, "[]")); err == nil {
		return fmt.Sprintf("write %q, without brackets", a)
	}
	if hint := strayHint(s); hint != "" {
		return hint
	}
	if a, b, ok := strings.Cut(s, "-"); ok && isAddr(a) && (isAddr(b) || isNumber(b)) {
		return "write each address of the range as a string of its own"
	}
	return whyNoAddr(s)
}

// prefixHint says why a text is not a range, or what to write instead.
func prefixHint(s string) string {
	if a, err := netip.ParseAddr(s); err == nil && a.Zone() == "" && !a.Is4In6() {
		return fmt.Sprintf("write %q for this one address", netip.PrefixFrom(a, a.BitLen()))
	}
	if hint := strayHint(s); hint != "" {
		return hint
	}
	addr, length, slash := strings.Cut(s, "/")
	a, err := netip.ParseAddr(addr)
	switch {
	case !slash && (s == "all" || s == "any" || s == "*"):
		return `write "0.0.0.0/0" and "::/0", or leave the list out, for everybody`
	case slash && err != nil && whyNoAddr(addr) != "":
		return whyNoAddr(addr)
	case slash && err == nil && lengthHint(a, length) != "":
		return lengthHint(a, length)
	}
	return `want an address and a length, such as "10.0.0.0/8"`
}

// lengthHint says what is wrong with the length of a range.
func lengthHint(a netip.Addr, length string) string {
	if mask, err := netip.ParseAddr(length); err == nil && mask.Is4() && a.Is4() {
		ones, bits := net.IPMask(mask.AsSlice()).Size()
		if bits == 0 {
			return "its mask has ones behind zeros"
		}
		return fmt.Sprintf("write %q, with a length for the mask", netip.PrefixFrom(a, ones).Masked())
	}
	n, err := strconv.Atoi(length)
	switch {
	case err != nil || !isNumber(length):
		return ""
	case n > a.BitLen():
		return fmt.Sprintf("its length can be 0 to %d", a.BitLen())
	}
	return fmt.Sprintf("write %q, without leading zeros", netip.PrefixFrom(a, n).Masked())
}

// strayHint says what a text has that neither an address nor a range has.
func strayHint(s string) string {
	trimmed := strings.Join(strings.Fields(s), "")
	_, err := netip.ParsePrefix(trimmed)
	switch {
	case trimmed == "":
		return "it is empty"
	case trimmed != s && (err == nil || isAddr(trimmed)):
		return fmt.Sprintf("write %q, without blanks", trimmed)
	case template.MatchString(s):
		return notFilledIn
	case trimmed != s || strings.ContainsAny(s, ",;"):
		return "write each as a string of its own"
	case strings.Contains(s, "://"):
		return "write the address alone, which is not a URL"
	}
	return ""
}

// whyNoAddr says what is wrong with a text that might be an address.
func whyNoAddr(s string) string {
	switch {
	case strings.Trim(s, "0123456789.") == "":
		return whyNoIPv4(strings.Split(s, "."))
	case strings.Count(s, ":") >= 2:
		return whyNoIPv6(s)
	case strings.ContainsFunc(s, unicode.IsLetter):
		return "names are not looked up: write the address"
	}
	return ""
}

func whyNoIPv4(parts []string) string {
	if len(parts) != 4 {
		return fmt.Sprintf("an IPv4 address has 4 numbers, not %d", len(parts))
	}
	for _, p := range parts {
		n, err := strconv.Atoi(p)
		switch {
		case p == "":
			return "one of its 4 numbers is missing"
		case err != nil || n > 255:
			return source.Excerpt(p) + " is more than 255"
		case len(p) > 1 && p[0] == '0':
			return source.Excerpt(p) + " begins with 0: some programs read that as octal, so write it without"
		}
	}
	return ""
}

func whyNoIPv6(s string) string {
	groups := strings.Split(strings.Trim(s, "[]"), ":")
	for _, g := range groups {
		if strings.Trim(g, "0123456789abcdefABCDEF.") != "" {
			return source.Excerpt(g) + " is not hexadecimal"
		}
		if len(g) > 4 && !strings.Contains(g, ".") {
			return source.Excerpt(g) + " has more than 4 digits"
		}
	}
	switch {
	case strings.Count(s, "::") > 1 || strings.Contains(s, ":::"):
		return "it can have :: only once"
	case len(groups) != 8:
		return fmt.Sprintf("an IPv6 address has 8 groups, or fewer and ::, not %d", len(groups))
	}
	return ""
}

func isNumber(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }
