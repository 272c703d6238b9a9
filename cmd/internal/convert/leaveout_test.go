package convert_test

import (
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/cmd/internal/convert"
	"svcproxy.dev/svcproxy/cmd/internal/convert/reader"
	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/read"
)

// Where it is for a mode that cannot do them, keys of IPVS are left out with a note, and the service stays.
func TestKeysOfIPVSAreLeftOut(t *testing.T) {
	const text = "-A -u 192.0.2.10:53 -s sh -o -b sh-port\n-a -u 192.0.2.10:53 -r 10.0.0.1:53 -m -w 1 -x 5 -y 2\n"
	keys := []string{"scheduler", "scheduler_flags", "one_packet", "max_connections", "min_connections"}
	for _, mode := range []string{"ipvs", "nftables"} {
		result, err := format(t, "ipvsadm").Read(reader.Input{Name: "saved", Data: []byte(text)})
		if err != nil {
			t.Fatal(err)
		}
		rules := read.Rules{Check: func(s *source.Service) []source.Problem { return configs.Refuse(s, mode) }}
		d, err := convert.Judge{Mode: mode, Rules: rules}.Document(result, "")
		if err != nil {
			t.Fatal(err)
		}
		var notes strings.Builder
		for _, n := range d.Notes {
			notes.WriteString(n.String() + "\n")
		}
		for _, key := range keys {
			written := strings.Contains("\n"+strings.ReplaceAll(string(d.TOML), " "+key+" =", "\n"+key+" ="), "\n"+key+" =")
			if written != (mode == "ipvs") || d.Services != 1 {
				t.Errorf("%s mode: %s is written: %v, in %d services\n%s", mode, key, written, d.Services, d.TOML)
			}
		}
		for _, what := range []string{"scheduler sh is left out", "one_packet is left out", "max_connections is left out"} {
			if said := strings.Contains(notes.String(), what); said != (mode == "nftables") {
				t.Errorf("%s mode: %q is said: %v\n%s", mode, what, said, notes.String())
			}
		}
	}
}
