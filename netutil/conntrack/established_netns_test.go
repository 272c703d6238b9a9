//go:build netns

package conntrack_test

import (
	"fmt"
	"net"
	"slices"
	"testing"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/netutil/conntrack"
)

// Of TCP, only what is established counts; of UDP what was answered.
func TestEstablishedCountsAnsweredFlows(t *testing.T) {
	namespace(t, `ip link set lo up
ip route add 10.96.0.0/24 dev lo src 127.0.0.1
iptables -w -t nat -A OUTPUT -d 10.96.0.1 -p tcp --dport 80 -j DNAT --to-destination 127.0.0.1:8080
`)
	l, err := net.Listen("tcp", "127.0.0.1:8080")
	fatal.If(t, err)
	defer l.Close()
	for range 2 {
		dial(t, "tcp", "10.96.0.1:80")
	}
	ended, err := net.Dial("tcp", "10.96.0.1:80")
	fatal.If(t, err)
	if err := ended.Close(); err != nil { // FIN_WAIT
		t.Fatal(err)
	}
	dial(t, "udp", "10.96.0.1:53") // nobody answers
	var got []string
	err = conntrack.List(t.Context(), false, conntrack.Filter{}, func(c *conntrack.Connection) error {
		if c.Established {
			got = append(got, fmt.Sprint(c.Protocol, " ", c.Dst, " ", c.Reply))
		}
		return nil
	})
	if want := []string{"6 10.96.0.1:80 127.0.0.1:8080", "6 10.96.0.1:80 127.0.0.1:8080"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("established: %q, error %v, want %q", got, err, want)
	}
}
