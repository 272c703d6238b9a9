package decode

import (
	"fmt"
	"net/netip"
	"strings"
	"time"
	"unicode/utf8"

	"svcproxy.dev/svcproxy/source"
)

// Literal returns a value as TOML writes it, on one line. An invalid address is the empty string.
func Literal(v any) string {
	switch v := v.(type) {
	case string:
		return quoted(v)
	case time.Duration:
		return quoted(ShortDuration(v))
	case netip.Addr:
		if !v.IsValid() {
			return `""`
		}
		return quoted(v.String())
	case fmt.Stringer:
		return quoted(v.String())
	case []string:
		return literals(v)
	case []netip.Addr:
		return literals(v)
	case []netip.Prefix:
		return literals(v)
	case []source.StatusRange:
		return literals(v)
	}
	return fmt.Sprint(v) // int, bool
}

func literals[T any](all []T) string {
	words := make([]string, len(all))
	for i, v := range all {
		words[i] = Literal(v)
	}
	return "[" + strings.Join(words, ", ") + "]"
}

// quoted returns a basic string of TOML.
func quoted(text string) string {
	b := append(make([]byte, 0, len(text)+2), '"')
	for _, c := range text {
		switch i := strings.IndexRune("\"\\\n\r\t", c); {
		case i >= 0:
			b = append(b, '\\', `"\nrt`[i])
		case c < ' ' || c == 0x7f:
			b = fmt.Appendf(b, `\u%04x`, c)
		default:
			b = utf8.AppendRune(b, c)
		}
	}
	return string(append(b, '"'))
}
