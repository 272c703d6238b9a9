package explain

import (
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	tests := []struct{ src, dst, want string }{
		{"203.0.113.9", "10.96.0.10:80/tcp", "10.96.0.10:80/tcp"},
		{"203.0.113.9", "10.96.0.10:80", "10.96.0.10:80/tcp"},
		{"203.0.113.9", "10.96.0.10:53/udp", "10.96.0.10:53/udp"},
		{"203.0.113.9", "10.96.0.10", "10.96.0.10"},
		{"2001:db8::9", "[fd00::10]:80", "[fd00::10]:80/tcp"},
		{"2001:db8::9", "fd00::10", "fd00::10"},
		{"2001:db8::9", "[fd00::10]", "fd00::10"},
		{"::ffff:203.0.113.9", "10.96.0.10:80/sctp", "10.96.0.10:80/sctp"},
	}
	for _, tt := range tests {
		q, err := Parse(tt.src, tt.dst, "eth1")
		if err != nil || q.String() != tt.want {
			t.Errorf("Parse(%s, %s) = %s, %v; want %s", tt.src, tt.dst, q, err, tt.want)
		}
		if again, err := FromQuery(q.Query()); err != nil || again != q {
			t.Errorf("as a query: %+v, %v; want %+v", again, err, q)
		}
	}
}

func TestParseErrors(t *testing.T) {
	tests := []struct{ src, dst, in, want string }{
		{"web", "10.96.0.10:80", "", `source "web": want an IP address`},
		{"fe80::1%eth0", "fd00::1", "", "want an IP address"},
		{"203.0.113.9", "10.96.0.10:http", "", `"http" is no port`},
		{"203.0.113.9", "10.96.0.10:0", "", `"0" is no port`},
		{"203.0.113.9", "10.96.0.10:70000", "", `"70000" is no port`},
		{"203.0.113.9", "10.96.0.10:80/tpc", "", `unknown protocol "tpc"`},
		{"203.0.113.9", "web:80", "", "no IP address"},
		{"203.0.113.9", "fd00::1", "", "of different address families"},
		{"203.0.113.9", "10.96.0.10:80", "../all", "no interface can have such a name"},
		{"203.0.113.9", "10.96.0.10:80", "a-name-far-too-long", "no interface can have such a name"},
	}
	for _, tt := range tests {
		if _, err := Parse(tt.src, tt.dst, tt.in); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("Parse(%s, %s, %s): %v; want %s", tt.src, tt.dst, tt.in, err, tt.want)
		}
	}
}
