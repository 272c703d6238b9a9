//go:build bench

package bench

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"svcproxy.dev/svcproxy/internal/pace"
)

// repairPatience is for all of a repair: of 10,000 services it takes iptables-nft-restore some 10 s.
const repairPatience = 5 * time.Minute

// A breakage is what others do to what svcproxy has in the kernel.
type breakage struct {
	name string
	do   func(*node) error
}

// breakages returns those of a variant.
func (v variant) breakages() []breakage {
	if v != nftables {
		return []breakage{{"-F and -X in every table", (*node).flushTables}}
	}
	script := func(name, text string) breakage {
		return breakage{name, func(n *node) error {
			_, err := n.Node.Run("nft", strings.ReplaceAll(text, "TABLE", "ip svcproxy"))
			return err
		}}
	}
	return []breakage{
		script("flush ruleset", "flush ruleset"),
		script("delete table", "delete table TABLE"),
		script("dormant", "add table TABLE { flags dormant; }"),
		script("hooks flushed", "flush chain TABLE prerouting; flush chain TABLE output"),
		script("foreign chain", "add chain TABLE foreign; add rule TABLE foreign jump services; flush chain TABLE prerouting"),
		script("foreign map", "add map TABLE foreign { type inet_service : verdict; }; "+
			"add element TABLE foreign { 1 : jump services }; flush chain TABLE prerouting"),
	}
}

// flushTables removes all rules and chains. One that is repaired meanwhile cannot be deleted.
func (n *node) flushTables() error {
	tool := n.variant.tool("iptables")
	for _, table := range []string{"nat", "filter", "mangle"} {
		if _, err := n.Node.Run(tool, "-w", "-t", table, "-F"); err != nil {
			return err
		}
		n.Node.Run(tool, "-w", "-t", table, "-X")
	}
	return nil
}

// A repair is what one breakage of one variant did, and how long.
type repair struct {
	variant  variant
	services int
	breakage
	took            time.Duration // the command of those who break
	outage          outage
	whole           time.Duration // from the command until everything was as before, which is looked at now and then
	connections     int           // that were held
	talkers, silent int           // of those that were lost
}

// TestRepair breaks what svcproxy has in the kernel under connections that are
// held, and shows how long new ones fail. It fails where a held one is lost, or
// what was broken does not come back.
func TestRepair(t *testing.T) {
	logMachine(t)
	count, connections := 1_000, 100
	if os.Getenv(envSoak) == "1" {
		count, connections = 10_000, 1_000
	}
	var rows []*repair
	for _, v := range []variant{nftables, nft, legacy} {
		t.Run(v.tables(), func(t *testing.T) {
			d := mustDaemon(t, v, count)
			for _, b := range v.breakages() {
				r := &repair{variant: v, services: count, connections: connections, breakage: b}
				rows = append(rows, r)
				if err := r.measure(t, d); err != nil {
					t.Errorf("%s: %v\n%s", b.name, err, d.LogTail(logLines))
				}
			}
		})
	}
	t.Log("\n" + repairs(rows))
	logMachine(t)
}

// mustDaemon starts svcproxy with so many services on a fresh node, or ends the test.
func mustDaemon(t *testing.T, v variant, count int) *daemon {
	t.Helper()
	d, err := startDaemon(t, mustNode(t, v), makeServices(count), fmt.Sprintf(quietSettings, v.mode()))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// measure breaks once, and waits until all is as before.
func (r *repair) measure(t *testing.T, d *daemon) error {
	before, err := d.node.shown()
	if err != nil {
		return err
	}
	held, err := connections(d.node, makeServices(r.services), r.connections)
	if err != nil {
		return err
	}
	defer held.close()
	p := pollAll(t, d.node, makeServices(r.services))
	start := time.Now()
	err = r.do(d.node)
	r.took = time.Since(start)
	if err == nil {
		r.outage, err = p.over(repairPatience)
	}
	if err == nil {
		err = pace.Poll(repairPatience, func() error { return d.node.stillShows(before) })
		r.whole = time.Since(start)
	}
	if err != nil {
		return err
	}
	r.talkers, r.silent, err = held.count()
	return err
}

// shown returns the lines of what the kernel holds of ours, sorted.
func (n *node) shown() ([]string, error) {
	if n.variant == nftables {
		text, err := n.Node.Run("nft", "list", "table", "ip", "svcproxy")
		return slices.Sorted(strings.Lines(text)), err
	}
	text, err := n.Node.Run(fmt.Sprintf("iptables-%s-save", n.variant))
	ours := slices.DeleteFunc(slices.Sorted(strings.Lines(text)), func(line string) bool {
		return !strings.HasPrefix(line, "-A ") || !strings.Contains(line, "SVCP-")
	})
	return ours, err
}

// stillShows checks that what the kernel holds of ours is as it was.
func (n *node) stillShows(before []string) error {
	now, err := n.shown()
	if err == nil && !slices.Equal(now, before) {
		time.Sleep(time.Second) // to look takes a processor for long
		err = fmt.Errorf("the kernel shows %d lines of ours, and %d before", len(now), len(before))
	}
	return err
}

// repairs shows all that was measured.
func repairs(rows []*repair) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "tables\tservices\tbroken by\tcommand\tnew ones fail for\tfailed\tall as before\theld\tlost talking\tlost silent\t")
	for _, r := range rows {
		fmt.Fprintf(w, "%s\t%d\t%s\t%v\t", r.variant.tables(), r.services, r.name, round(r.took))
		fmt.Fprintf(w, "%v\t%d of %d\t%v\t%d\t%d\t%d\t\n", round(r.outage.long), r.outage.failed, r.outage.asked, round(r.whole), r.connections, r.talkers, r.silent)
	}
	w.Flush()
	return b.String()
}
