//go:build netns

package nft

import (
	"io"
	"net"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/internal/pace"
)

// A connection lives on when all other rules go, that which translates it too, as
// long as a table that keeps it is there.
func TestKeptConnectionOutlivesItsRules(t *testing.T) {
	c := dial(t)
	run := func(line string) string {
		t.Helper()
		words := strings.Fields(line)
		out, err := exec.Command(words[0], words[1:]...).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v: %s", line, err, out)
		}
		return string(out)
	}
	run("ip link set lo up")
	run("ip route add 192.0.2.1 dev lo src 127.0.0.1")
	server, err := net.Listen("tcp", "127.0.0.1:8080")
	fatal.If(t, err)
	defer server.Close()
	table := Table{unix.NFPROTO_IPV4, "keep"}
	for range 2 { // it may be there already
		fatal.If(t, Keep(table, "a comment"))
	}
	run("nft add table ip test; add chain ip test out { type nat hook output priority -100; }; " +
		"add rule ip test out ip daddr 192.0.2.1 tcp dport 80 dnat to 127.0.0.1:8080")
	client, err := net.DialTimeout("tcp", "192.0.2.1:80", pace.Scale(10*time.Second))
	fatal.If(t, err)
	defer client.Close()
	answer, err := server.Accept()
	fatal.If(t, err)
	defer answer.Close()
	run("nft delete table ip test")
	if exists, _, err := c.Lookup(Table{unix.NFPROTO_IPV4, "test"}); exists || err != nil {
		t.Fatalf("after a flush there is a table: %v, %v", exists, err)
	}
	for _, way := range []struct{ from, to net.Conn }{{client, answer}, {answer, client}} {
		way.to.SetReadDeadline(time.Now().Add(pace.Scale(10 * time.Second)))
		if _, err := way.from.Write([]byte("x")); err != nil {
			t.Error(err)
		}
		if _, err := io.ReadFull(way.to, make([]byte, 1)); err != nil {
			t.Error(err)
		}
	}
	if list := run("nft list ruleset"); !strings.Contains(list, "a comment") || strings.Count(list, "ct state new accept") != 1 {
		t.Errorf("nft lists\n%s", list)
	}
	for range 2 {
		if err := RemoveTable(table); err != nil {
			t.Error(err)
		}
	}
	if list := run("nft list ruleset"); list != "" {
		t.Errorf("after the end nft lists\n%s", list)
	}
}
