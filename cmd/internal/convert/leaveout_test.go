package convert_test

import (
	"fmt"
	"slices"
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

// What a scheduler of IPVS did that another mode does in another way has a line.
func TestLeftOutSchedulers(t *testing.T) {
	for _, tt := range []struct{ scheduler, weights, mode, want string }{
		{"rr", "13", "iptables", "the weights of endpoints count, and scheduler rr gave them no heed; write the same weight for all"},
		{"rr", "31", "ipvs", ""},
		{"rr", "22", "nftables", ""},
		{"wrr", "13", "nftables", ""},
		{"fo", "31", "nftables", "scheduler fo gave the endpoint with the highest weight all connections, and all get some now; write tier = 1, and higher ones, for those that are to wait"},
		{"sh", "11", "nftables", `session_affinity = "client_ip" keeps clients on their endpoint too; scheduler maglev does in nftables mode`},
		{"mh -b mh-fallback", "11", "iptables", `session_affinity = "client_ip" keeps clients on their endpoint too; scheduler maglev does in nftables mode`},
		{"sh -p 60", "11", "nftables", ""},
	} {
		text := fmt.Sprintf("-A -t 192.0.2.1:80 -s %s\n-a -t 192.0.2.1:80 -r 10.0.0.1:80 -m -w %c\n-a -t 192.0.2.1:80 -r 10.0.0.2:80 -m -w %c\n", tt.scheduler, tt.weights[0], tt.weights[1])
		result, err := format(t, "ipvsadm").Read(reader.Input{Name: "saved", Data: []byte(text)})
		if err != nil {
			t.Fatal(err)
		}
		rules := read.Rules{Check: func(s *source.Service) []source.Problem { return configs.Refuse(s, tt.mode) }}
		d, err := convert.Judge{Mode: tt.mode, Written: tt.mode, Rules: rules}.Document(result, "")
		if err != nil {
			t.Fatal(err)
		}
		said := slices.ContainsFunc(d.Notes, func(n reader.Note) bool { return tt.want != "" && strings.HasSuffix(n.String(), tt.want) })
		extra := slices.ContainsFunc(d.Notes, func(n reader.Note) bool {
			return strings.Contains(n.String(), "heed") || strings.Contains(n.String(), "keeps clients") || strings.Contains(n.String(), "all connections")
		})
		if said != (tt.want != "") || extra != said {
			t.Errorf("%s in %s mode: want %q in %v", tt.scheduler, tt.mode, tt.want, d.Notes)
		}
	}
}
