//go:build netns

package lab

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/internal/pace"
)

var heldGroups = []group{{
	name:     "held connections",
	settings: "[sync]\nresync_interval = \"1s\"\n",
	cases:    []testCase{{name: "all rules are removed", run: testHeldWithoutRules}},
	damaging: true,
}}

// debianRules is what Debian's /etc/nftables.conf does when nftables.service is reloaded.
const debianRules = `flush ruleset
table inet filter {
	chain input { type filter hook input priority filter; }
	chain forward { type filter hook forward priority filter; }
	chain output { type filter hook output priority filter; }
}`

// removals are what other programs do that removes the last rule of ours. After each, all comes back.
func (m mode) removals() []damage {
	list := []damage{
		{name: "nft flush ruleset", do: func(h *Host) error { return nft(h, "flush ruleset") }},
		{name: "reload of nftables.service", do: func(h *Host) error { return nft(h, debianRules) }},
	}
	if m.name == "nftables" {
		return append(list, damage{name: "nft delete table", do: func(h *Host) error {
			return errors.Join(nft(h, "flush ruleset"), nft(h, "add table ip svcproxy\ndelete table ip svcproxy"))
		}})
	}
	flush := func(h *Host) error {
		return restore(h, m.variant, "*filter -F -X COMMIT *nat -F -X COMMIT *mangle -F -X")
	}
	return append(list,
		damage{name: "iptables -F and -X", do: flush},
		damage{name: "iptables -F and -X, nft flush ruleset", do: func(h *Host) error {
			return errors.Join(flush(h), nft(h, "flush ruleset"))
		}})
}

// testHeldWithoutRules: established connections go on while there is no rule of ours, however
// long the daemon takes to put them back.
func testHeldWithoutRules(t *testing.T, e *env) {
	e.apply(t, e.everywhere(at(e.Local[0], e.Remote[0])...))
	for _, d := range e.mode.removals() {
		t.Run(d.name, func(t *testing.T) {
			_, whole, err := Snapshot(e.Node)
			if err != nil {
				t.Fatal(err)
			}
			conns := append(e.connections(t, e.Client, e.vip(1), 80), e.connections(t, e.Client, e.external(1), 80)...)
			conns = append(conns, e.connections(t, e.Node, e.vip(1), 80)...)
			if err := errors.Join(e.daemon.Freeze(), d.do(e.Node)); err != nil {
				t.Fatal(err)
			}
			if left, err := e.Node.Run("nft", "list", "tables"); err != nil || strings.Contains(left, "table ip svcproxy\n") {
				t.Fatalf("the daemon does not stand still: %v\n%s", err, left)
			}
			for range 3 {
				e.goOn(t, "without rules", conns)
			}
			if err := e.daemon.Signal(unix.SIGCONT); err != nil {
				t.Fatal(err)
			}
			if err := pace.Poll(expectPatience, func() error { return e.whole(whole) }); err != nil {
				t.Errorf("our objects are not repaired: %v", err)
			}
			e.goOn(t, "after the repair", conns)
		})
	}
}
