//go:build netns

package ipset

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/netutil/netnstest"
)

// enterNamespace moves the test into a network namespace of its own.
func enterNamespace(t *testing.T) {
	t.Helper()
	netnstest.Enter(t)
}

func dial(t *testing.T) *Conn {
	t.Helper()
	c, err := Dial()
	fatal.If(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

func entry(addr string, proto uint8, port uint16, net string) Entry {
	e := Entry{Addr: netip.MustParseAddr(addr), Protocol: proto, Port: port}
	if net != "" {
		e.Net = netip.MustParsePrefix(net)
	}
	return e
}

func TestSetsHoldWhatWasAdded(t *testing.T) {
	enterNamespace(t)
	c := dial(t)
	ctx := context.Background()
	tests := []struct {
		set     Set
		entries []Entry
	}{
		{Set{"SVCP-A", HashIP, false, 10}, []Entry{entry("10.0.0.1", 0, 0, ""), entry("10.0.0.2", 0, 0, "")}},
		{Set{"SVCP-B", HashIP, true, 10}, []Entry{entry("fd00::1", 0, 0, ""), entry("fd00::2", 0, 0, "")}},
		{Set{"SVCP-C", HashIPPort, false, 10}, []Entry{entry("10.0.0.1", 6, 80, ""), entry("10.0.0.1", 17, 80, ""), entry("10.0.0.1", 132, 65535, "")}},
		{Set{"SVCP-D", HashIPPort, true, 10}, []Entry{entry("fd00::1", 6, 80, ""), entry("fd00::1", 17, 53, "")}},
		{Set{"SVCP-E", HashIPPortIP, false, 10}, []Entry{entry("10.0.0.1", 6, 80, "10.0.0.1/32")}},
		{Set{"SVCP-F", HashIPPortIP, true, 10}, []Entry{entry("fd00::1", 6, 80, "fd00::1/128")}},
		{Set{"SVCP-G", HashIPPortNet, false, 10}, []Entry{entry("10.0.0.1", 6, 80, "0.0.0.0/1"), entry("10.0.0.1", 6, 80, "128.0.0.0/1"), entry("10.0.0.1", 6, 80, "10.1.2.3/32")}},
		{Set{"SVCP-H", HashIPPortNet, true, 10}, []Entry{entry("fd00::1", 6, 80, "fd00:1::/64"), entry("fd00::1", 6, 80, "::/1")}},
	}
	for _, tt := range tests {
		t.Run(string(tt.set.Type)+fmt.Sprint(tt.set.IPv6), func(t *testing.T) {
			fatal.If(t, c.Create(ctx, tt.set))
			for range 2 { // adding twice is no error
				fatal.If(t, c.Add(ctx, tt.set.Name, tt.entries))
			}
			checkSet(t, c, tt.set, tt.entries)
			for range 2 {
				fatal.If(t, c.Delete(ctx, tt.set.Name, tt.entries[:1]))
			}
			checkSet(t, c, tt.set, tt.entries[1:])
		})
	}
	checkTool(t)
	names, err := c.Names(ctx)
	if err != nil || len(names) != 8 || names[0] != "SVCP-A" || names[7] != "SVCP-H" {
		t.Errorf("names: got %v, %v", names, err)
	}
}

func checkSet(t *testing.T, c *Conn, set Set, entries []Entry) {
	t.Helper()
	l, err := c.List(context.Background(), set.Name)
	fatal.If(t, err)
	if l.Set != set || l.HasTimeout {
		t.Errorf("set: got %+v, want %+v", l, set)
	}
	text := func(entries []Entry) (s []string) {
		for _, e := range entries {
			s = append(s, e.String())
		}
		slices.Sort(s)
		return s
	}
	if got, want := text(l.Entries), text(entries); !slices.Equal(got, want) {
		t.Errorf("members\n got %q\nwant %q", got, want)
	}
}

// checkTool sees that the ipset program can read our sets, and agrees.
func checkTool(t *testing.T) {
	t.Helper()
	out, err := exec.Command("ipset", "list").CombinedOutput()
	if err != nil {
		t.Fatalf("ipset list: %v\n%s", err, out)
	}
	for _, want := range []string{"10.0.0.1,sctp:65535", "fd00::1,tcp:80,::/1", "10.0.0.1,tcp:80,10.1.2.3", "128.0.0.0/1"} {
		if !strings.Contains(string(out), want+"\n") {
			t.Errorf("ipset list has no %s:\n%s", want, out)
		}
	}
}

func TestManyMembersAreWrittenAtOnce(t *testing.T) {
	enterNamespace(t)
	c := dial(t)
	ctx := context.Background()
	const n = 100_000
	entries := make([]Entry, n)
	for i := range entries {
		a := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
		entries[i] = Entry{Addr: a, Protocol: 6, Port: 80, Net: netip.PrefixFrom(a, 32)}
	}
	fatal.If(t, c.Create(ctx, Set{"SVCP-M", HashIPPortIP, false, n}))
	fatal.If(t, c.Add(ctx, "SVCP-M", entries))
	l, err := c.List(ctx, "SVCP-M")
	if err != nil || len(l.Entries) != n {
		t.Fatalf("listed %d members of %d: %v", len(l.Entries), n, err)
	}
}

func TestErrorsNameTheCause(t *testing.T) {
	enterNamespace(t)
	c := dial(t)
	ctx := context.Background()
	eleven := make([]Entry, 11)
	for i := range eleven {
		eleven[i] = entry("10.0.0.1", 6, uint16(i+1), "")
	}
	a, b := Set{"SVCP-A", HashIP, false, 10}, Set{"SVCP-B", HashIPPort, false, 10}
	gone, cancel := context.WithCancel(ctx)
	cancel()
	_, listErr := c.List(ctx, "SVCP-A")
	tests := []struct {
		name string
		err  error
		want error
	}{
		{"listing what is not there", listErr, ErrNotExist},
		{"adding to what is not there", c.Add(ctx, "SVCP-A", []Entry{entry("10.0.0.1", 0, 0, "")}), ErrNotExist},
		{"destroying what is not there", c.Destroy(ctx, "SVCP-A"), nil},
		{"creating", c.Create(ctx, a), nil},
		{"creating twice", c.Create(ctx, a), ErrExist},
		{"creating another", c.Create(ctx, b), nil},
		{"adding too many", c.Add(ctx, "SVCP-B", eleven), ErrFull},
		{"swapping different types", c.Swap(ctx, "SVCP-A", "SVCP-B"), ErrMismatch},
		{"a context that ended", c.Destroy(gone, "SVCP-A"), context.Canceled},
		{"destroying", c.Destroy(ctx, "SVCP-A"), nil},
	}
	for _, tt := range tests {
		if !errors.Is(tt.err, tt.want) {
			t.Errorf("%s: got %v, want %v", tt.name, tt.err, tt.want)
		}
	}
	if err := c.Add(ctx, "SVCP-B", []Entry{entry("10.0.0.1", 6, 80, "0.0.0.0/0")}); err == nil {
		t.Error("a prefix of length 0 was taken")
	}
}
