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

// script passes commands to nft.
func script(lines string) (string, error) {
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(lines + "\n")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func mustScript(t *testing.T, lines string) {
	t.Helper()
	if out, err := script(lines); err != nil {
		t.Fatalf("%s: %v: %s", lines, err, out)
	}
}

// hookTables returns the tables of holders in this namespace.
func hookTables(t *testing.T, c *Conn) (list []OwnedTable) {
	t.Helper()
	list, err := c.TablesNamed(HooksTable)
	fatal.If(t, err)
	return list
}

// A translated connection lives on when another process removes all rules, and nobody else can
// remove what keeps it.
func TestHeldConnectionOutlivesAFlush(t *testing.T) {
	c := dial(t)
	for _, line := range []string{"link set lo up", "route add 192.0.2.1 dev lo src 127.0.0.1"} {
		if out, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v: %s", line, err, out)
		}
	}
	server, err := net.Listen("tcp", "127.0.0.1:8080")
	fatal.If(t, err)
	defer server.Close()
	h := NewHolder(unix.NFPROTO_IPV4)
	defer h.Release()
	fatal.If(t, h.Hold())
	mustScript(t, "add table ip test; add chain ip test out { type nat hook output priority -100; }; "+
		"add rule ip test out ip daddr 192.0.2.1 tcp dport 80 dnat to 127.0.0.1:8080")
	client, err := net.DialTimeout("tcp", "192.0.2.1:80", pace.Scale(10*time.Second))
	fatal.If(t, err)
	defer client.Close()
	answer, err := server.Accept()
	fatal.If(t, err)
	defer answer.Close()
	mustScript(t, "flush ruleset")
	if there, _, err := c.Lookup(Table{unix.NFPROTO_IPV4, "test"}); there || err != nil {
		t.Fatalf("after a flush there is a table: %v, %v", there, err)
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
	for _, line := range []string{"delete table ip " + HooksTable, "table ip " + HooksTable + " { flags owner; chain c { }; }"} {
		if out, err := script(line); err == nil {
			t.Errorf("another process may %q: %s", line, out)
		}
	}
}

// Holders of one process share the table, which goes with the last one. One that another run
// left, or a saved ruleset has, is taken over.
func TestHoldIsShared(t *testing.T) {
	c := dial(t)
	mustScript(t, "add table ip "+HooksTable+"; add chain ip "+HooksTable+" stale")
	a, b := NewHolder(unix.NFPROTO_IPV4), NewHolder(unix.NFPROTO_IPV4)
	for range 2 {
		for _, h := range []*Holder{a, b} {
			fatal.If(t, h.Hold())
		}
	}
	for _, h := range []*Holder{a, a} {
		if list := hookTables(t, c); len(list) != 1 || !list[0].Owned {
			t.Errorf("while one of them holds: %+v", list)
		}
		if err := h.Release(); err != nil {
			t.Error(err)
		}
	}
	if err := b.Release(); err != nil {
		t.Error(err)
	}
	if list := hookTables(t, c); len(list) != 0 {
		t.Errorf("after the last: %+v", list)
	}
	if err := (*Holder)(nil).Hold(); err != nil || len(hookTables(t, c)) > 0 {
		t.Error("a nil Holder holds", err)
	}
}

// A table without an owner is removed in its family; one that a process owns stays.
func TestRemoveHooksSparesOwnedTables(t *testing.T) {
	c := dial(t)
	mustScript(t, "add table ip6 "+HooksTable)
	h := NewHolder(unix.NFPROTO_IPV4)
	defer h.Release()
	fatal.If(t, h.Hold())
	for _, want := range []bool{true, false} {
		for _, family := range []byte{unix.NFPROTO_IPV4, unix.NFPROTO_IPV6} {
			got, err := RemoveHooks(family)
			if err != nil || got != (want && family == unix.NFPROTO_IPV6) {
				t.Errorf("family %d: removed %v, error %v", family, got, err)
			}
		}
	}
	if list := hookTables(t, c); len(list) != 1 || list[0].Family != unix.NFPROTO_IPV4 {
		t.Errorf("left: %+v", list)
	}
}
