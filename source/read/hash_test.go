package read_test

import (
	"testing"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/read"
)

// What maglev hashes is the client's address and port, unless a file says otherwise.
func TestHashOn(t *testing.T) {
	for _, tt := range []struct {
		keys string
		want source.HashOn
		bad  string
	}{
		{"", source.NotHashed, ""},
		{"scheduler = \"maglev\"\n", source.ClientIPPort, ""},
		{"scheduler = \"maglev\"\nhash_on = \"\"\n", source.ClientIPPort, ""},
		{"scheduler = \"maglev\"\nhash_on = \"client_ip_port\"\n", source.ClientIPPort, ""},
		{"scheduler = \"maglev\"\nhash_on = \"client_ip\"\n", source.ClientIP, ""},
		{"scheduler = \"rr\"\nhash_on = \"client_ip\"\n", 0, `a.toml:7:11: hash_on is for scheduler maglev; write scheduler = "maglev", or leave it out`},
		{"scheduler = \"maglev\"\nhash_on = \"ip\"\n", 0, `a.toml:7:11: unknown part of a client "ip"; want "", client_ip_port or client_ip`},
	} {
		services, faults := read.Parse("a.toml", []byte("[[services]]\nname = \"a\"\nvips = [\"10.96.0.1\"]\nports = [{ port = 80 }]\nendpoints = [\"10.0.0.1\"]\n"+tt.keys))
		switch {
		case tt.bad != "":
			if len(faults) != 1 || faults[0].String() != tt.bad {
				t.Errorf("%q: faults %v, want %s", tt.keys, faults, tt.bad)
			}
		case len(faults) > 0 || services[0].HashOn != tt.want:
			t.Errorf("%q hashes %q, want %q; faults %v", tt.keys, services[0].HashOn, tt.want, faults)
		}
	}
}
