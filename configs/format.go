package configs

import (
	"bytes"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"svcproxy.dev/svcproxy/source/decode"
)

// Format returns settings as a svcproxy.toml that Load reads back as they are.
func Format(s Settings) []byte {
	var b bytes.Buffer
	writeFields(&b, topFields, &s)
	for _, t := range sections {
		fmt.Fprintf(&b, "\n[%s]\n", t.name)
		writeFields(&b, t.fields, &s)
		if t.name == bgpName {
			writePeers(&b, s.BGP.Peers)
		}
	}
	return b.Bytes()
}

func writeFields[T any](b *bytes.Buffer, fields []decode.Field[T], of *T) {
	for _, f := range fields {
		fmt.Fprintf(b, "%s = %s\n", f.Key, literal(f.Value(of)))
	}
}

// literal returns a value in TOML. Kinds let no string through that Go and TOML
// quote differently.
func literal(v any) string {
	switch v := v.(type) {
	case string:
		return strconv.Quote(v)
	case []string:
		return list(v)
	case []netip.Prefix:
		return list(words(v))
	case netip.Addr:
		if !v.IsValid() {
			return `""`
		}
		return strconv.Quote(v.String())
	case time.Duration:
		return strconv.Quote(decode.ShortDuration(v))
	}
	return fmt.Sprint(v) // int, bool
}

func list(words []string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = strconv.Quote(w)
	}
	return "[" + strings.Join(quoted, ", ") + "]"
}

func words[S fmt.Stringer](values []S) []string {
	out := make([]string, len(values))
	for i, v := range values {
		out[i] = v.String()
	}
	return out
}
