package convert_test

import (
	"fmt"
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/cmd/internal/convert/reader"
)

// A short text that stands for too much is refused before it is built.
func TestTooMuchIsRefused(t *testing.T) {
	lines := func(n int, format string) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, format+"\n", i+1)
		}
		return b.String()
	}
	for _, tt := range []struct{ name, format, text, want string }{
		{"real servers for each port of a group", "keepalived",
			"virtual_server_group g {\n" + lines(1100, "192.0.2.1 %d") + "}\nvirtual_server group g {\n" + lines(1000, "real_server 10.0.0.1 %d {\n}") + "}\n",
			"in:1103: it stands for too many addresses, endpoints or words; split it"},
		{"firewall chains", "iptables",
			"*nat\n-A PREROUTING -d 192.0.2.1/32 -p tcp -m tcp --dport 80 -j DNAT --to-destination 10.0.0.1\n*filter\n" +
				lines(1500, "-A KUBE-PROXY-FIREWALL -d 192.0.2.1/32 -p tcp -m tcp --dport 80 -m comment --comment %d -j FW") +
				lines(1500, "-A FW -m comment --comment %d -j DROP"),
			"in: more than 2000000 rules lead from one to another"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := format(t, tt.format).Read(reader.Input{Name: "in", Data: []byte(tt.text)})
			if err == nil || err.Error() != tt.want {
				t.Errorf("error %v; want %s", err, tt.want)
			}
		})
	}
}

// Sections as of 20,000 services with a frontend and a backend each are read.
func TestManySections(t *testing.T) {
	var b strings.Builder
	b.WriteString("global\ndefaults\n mode tcp\n")
	for i := range 20_000 {
		fmt.Fprintf(&b, "frontend f%[1]d\n bind 10.1.%[2]d.%[3]d:80\n default_backend b%[1]d\nbackend b%[1]d\n server a 10.0.0.1:80\n", i, i>>8, i&255)
	}
	r, err := format(t, "haproxy").Read(reader.Input{Name: "in", Data: []byte(b.String())})
	if err != nil || len(r.Services) != 20_000 {
		t.Errorf("error %v", err)
	}
}
