//go:build netns

package trace

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/netutil/netnstest"
	"svcproxy.dev/svcproxy/netutil/nft"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// tables returns the tables of this namespace whose names begin with svcproxy-.
func tables(t *testing.T, c *nft.Conn) (names []string) {
	t.Helper()
	list, err := c.TablesNamed("svcproxy-")
	fatal.If(t, err)
	for _, one := range list {
		names = append(names, familyName(one.Family)+" "+one.Name)
	}
	slices.Sort(names)
	return names
}

func dial(t *testing.T) *nft.Conn {
	t.Helper()
	c, err := nft.Dial()
	fatal.If(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// What was left on an older kernel is removed and told; a trace that runs, and tables with
// names like ours, stay.
func TestRemoveTakesOnlyLeftovers(t *testing.T) {
	netnstest.Enter(t)
	c := dial(t)
	add := func(family byte, name string, owned bool) {
		b := nft.NewBatch(nft.Table{Family: family, Name: name})
		b.AddNewTable("", owned)
		fatal.If(t, c.Commit(b))
	}
	add(unix.NFPROTO_IPV4, "svcproxy-trace-4711", false)
	add(unix.NFPROTO_IPV6, "svcproxy-trace-4711", false)
	add(unix.NFPROTO_IPV4, "svcproxy-trace-4712", true)
	add(unix.NFPROTO_IPV4, "svcproxy-tracer", false)
	ctx, removed := proxier.WithRemovals(context.Background())
	fatal.If(t, Remove(ctx))
	if got, want := strings.Join(removed.Lines(), "; "), "table ip svcproxy-trace-4711, of a trace; table ip6 svcproxy-trace-4711, of a trace"; got != want {
		t.Errorf("told %q, want %q", got, want)
	}
	if got, want := tables(t, c), []string{"ip svcproxy-trace-4712", "ip svcproxy-tracer"}; !slices.Equal(got, want) {
		t.Errorf("left %q, want %q", got, want)
	}
}

// A table that another socket owns has its name.
func TestOwnedTableHasItsOwnersName(t *testing.T) {
	netnstest.Enter(t)
	b := nft.NewBatch(nft.Table{Family: unix.NFPROTO_IPV4, Name: fmt.Sprint(tablePrefix, os.Getpid())})
	b.AddNewTable("", true)
	fatal.If(t, dial(t).Commit(b))
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	o := Options{Filter: Filter{Destination: own}, Names: &Names{Families: []policy.Family{policy.IPv4}}}
	if err := Run(ctx, o); err != nil {
		t.Error(err)
	}
}

// Two traces with one process id, of two pid namespaces say, do not disturb each other. A
// trace whose table is taken away says so.
func TestConcurrentTracesAreIndependent(t *testing.T) {
	netnstest.Enter(t)
	c := dial(t)
	name := fmt.Sprint(tablePrefix, os.Getpid())
	taken := nft.NewBatch(nft.Table{Family: unix.NFPROTO_IPV4, Name: name})
	taken.AddTable("")
	fatal.If(t, c.Commit(taken))
	ctx, cancel := context.WithCancel(context.Background())
	o := Options{
		Filter: Filter{Destination: netip.MustParseAddr("127.0.0.1")},
		Names:  &Names{Families: []policy.Family{policy.IPv4, policy.IPv6}},
		Note:   func(text string) { t.Error(text) },
	}
	w := &watcher{Options: o, ctx: ctx, conn: c, log: &nft.PacketLog{Group: 1}}
	fatal.If(t, w.install())
	if got, want := tables(t, c), []string{"ip " + name, "ip " + name + "-1"}; !slices.Equal(got, want) {
		t.Errorf("tables %q, want %q", got, want)
	}
	if err := w.count(); err != nil {
		t.Error(err)
	}
	if err := w.remove(); err != nil {
		t.Error(err)
	}
	w.tables = []*rules{{table: nft.Table{Family: unix.NFPROTO_IPV4, Name: name + "-1"}}}
	if err := w.count(); err == nil || !strings.Contains(err.Error(), "another program removed it") {
		t.Errorf("without its table: %v", err)
	}
	cancel()
	if err := Run(ctx, o); err != nil {
		t.Error(err)
	}
	if got, want := tables(t, c), []string{"ip " + name}; !slices.Equal(got, want) {
		t.Errorf("left %q, want %q", got, want)
	}
}
