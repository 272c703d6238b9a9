package configs

import (
	"bytes"
	"fmt"

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
	writeOwners(&b, s.Owners)
	return b.Bytes()
}

func writeFields[T any](b *bytes.Buffer, fields []decode.Field[T], of *T) {
	for _, f := range fields {
		fmt.Fprintf(b, "%s = %s\n", f.Key, decode.Literal(f.Value(of)))
	}
}

func words[S fmt.Stringer](values []S) []string {
	out := make([]string, len(values))
	for i, v := range values {
		out[i] = v.String()
	}
	return out
}
