package convert_test

import (
	"fmt"
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/cmd/internal/convert/reader"
)

// lines returns n lines of a format, with the number of each.
func lines(n int, format string) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, format+"\n", i+1)
	}
	return b.String()
}

// tooMuch tells that a short text which stands for a long one is refused, and read where it stands for less.
func tooMuch(t *testing.T, name, small, great string) {
	t.Helper()
	if _, err := format(t, name).Read(reader.Input{Name: "in", Data: []byte(small)}); err != nil {
		t.Errorf("the small one: %v", err)
	}
	_, err := format(t, name).Read(reader.Input{Name: "in", Data: []byte(great)})
	if err == nil || !strings.HasSuffix(err.Error(), "it stands for too many addresses, endpoints or words; split it") {
		t.Errorf("the great one: error %v", err)
	}
}

// What a section of HAProxy stands for is a product, of which each factor is small.
func TestHAProxyGrowth(t *testing.T) {
	for _, tt := range []struct {
		name string
		text func(n int) string
	}{
		{"ports and servers", func(n int) string {
			return "listen a\n" + lines(20, "bind 192.0.2.1:%[1]d00-%[1]d99") + lines(n, "server s%d 10.0.0.1")
		}},
		{"groups of addresses and lines of a frontend", func(n int) string {
			return "frontend a\n" + lines(n, "bind 2001:db8::%[1]x:%[1]d") + "default_backend b\nbackend b\nserver s 10.0.0.1\n"
		}},
		{"groups of addresses and words of a server", func(n int) string {
			return "listen a\n" + lines(200, "bind 10.1.0.%[1]d:%[1]d") + "server s 10.0.0.1 " + strings.Repeat("check ", 50*n) + "\n"
		}},
		{"groups of addresses and a long word", func(n int) string {
			return "listen a\n" + lines(200, "bind 10.1.0.%[1]d:%[1]d") + "option httpchk\nhttp-check expect status " + strings.Repeat("200,", 100*n) +
				"\nserver s 10.0.0.1 check\n"
		}},
		{"conditions of one rule", func(n int) string {
			return "listen a\nbind 192.0.2.1:80\ntcp-request connection accept if " + strings.ReplaceAll(lines(n, "!{ src 2001:db8:%x:1::/64 }"), "\n", " ") +
				"\nserver s 10.0.0.1\n"
		}},
		{"rules, each of which leaves out more", func(n int) string {
			return "listen a\nbind 192.0.2.1:80\n" + lines(n, "tcp-request connection reject if { src 2001:db8:%x:1::/64 }") + "server s 10.0.0.1\n"
		}},
	} {
		t.Run(tt.name, func(t *testing.T) { tooMuch(t, "haproxy", tt.text(10), tt.text(2500)) })
	}
}
