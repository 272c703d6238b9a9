//go:build netns

package conntrack_test

import (
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/netutil/conntrack"
)

// marks lists the connections of a family as "DESTINATION MARK", by the first tuple.
func marks(t *testing.T, family string) map[string]string {
	t.Helper()
	out, err := exec.Command("conntrack", "-L", "-f", family).Output()
	fatal.If(t, err)
	found := map[string]string{}
	for line := range strings.Lines(string(out)) {
		_, rest, _ := strings.Cut(line, "dst=")
		dst, _, _ := strings.Cut(rest, " ")
		_, rest, _ = strings.Cut(line, " mark=")
		mark, _, _ := strings.Cut(rest, " ")
		found[dst] = mark
	}
	return found
}

func TestMarkOfFlows(t *testing.T) {
	const entry = "conntrack -I -p tcp -t 600 --state ESTABLISHED --dport 80 --reply-port-src 8080 "
	namespace(t, entry+"-s 192.0.2.7 --sport 1 -d 10.96.0.1 -r 10.244.0.1 -q 192.0.2.7 --reply-port-dst 1 --mark 3\n"+
		entry+"-s 192.0.2.7 --sport 2 -d 10.96.0.2 -r 10.244.0.1 -q 192.0.2.7 --reply-port-dst 2\n"+
		entry+"-s 192.0.2.7 --sport 3 -d 10.96.0.3 -r 10.244.0.1 -q 192.0.2.7 --reply-port-dst 3 --mark 16384\n"+
		entry+"-s 2001:db8::7 --sport 4 -d fd00:96::1 -r fd00:244::1 -q 2001:db8::7 --reply-port-dst 4\n")
	var asked []conntrack.Connection
	ours := func(c conntrack.Connection) bool {
		asked = append(asked, where(c))
		return c.Dst.Addr() != netip.MustParseAddr("10.96.0.2")
	}
	if n, err := conntrack.Mark(t.Context(), false, 1<<14, ours); n != 2 || err != nil {
		t.Errorf("Mark = %d, %v; want 2, nil", n, err)
	}
	want := conntrack.Connection{Protocol: unix.IPPROTO_TCP, Dst: netip.MustParseAddrPort("10.96.0.1:80"), Reply: netip.MustParseAddrPort("10.244.0.1:8080")}
	if len(asked) != 3 || !slices.Contains(asked, want) {
		t.Errorf("asked of %v, want three with %v", asked, want)
	}
	if n, err := conntrack.Mark(t.Context(), true, 1<<31, ours); n != 1 || err != nil {
		t.Errorf("Mark of IPv6 = %d, %v; want 1, nil", n, err)
	}
	for dst, mark := range map[string]string{"10.96.0.1": "16387", "10.96.0.2": "0", "10.96.0.3": "16384"} {
		if got := marks(t, "ipv4")[dst]; got != mark {
			t.Errorf("mark of the connection to %s: %s, want %s", dst, got, mark)
		}
	}
	if got := marks(t, "ipv6")["fd00:96::1"]; got != "2147483648" {
		t.Errorf("mark of the IPv6 connection: %s, want 2147483648", got)
	}
}
