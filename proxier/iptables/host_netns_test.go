//go:build netns

package iptables_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"svcproxy/netutil/netnstest"
	"svcproxy/proxier"
	"svcproxy/proxier/filter/filtertest"
	"svcproxy/proxier/iptables"
	"svcproxy/source"
)

// A host is a network namespace in which one variant of iptables is in use, by
// others too, and what our tests do with one family of it.
type host struct {
	testing.TB
	fam     proxier.Family
	variant string
	backend *iptables.Backend
	world   *filtertest.World
}

// enterNamespace moves the test into a network namespace of its own, with the
// rules and sets of somebody else.
func enterNamespace(t testing.TB, variant string) {
	t.Helper()
	netnstest.Enter(t)
	for _, f := range []string{"iptables-", "ip6tables-"} {
		run(t, f+variant, "-N", "FOREIGN")
		run(t, f+variant, "-A", "FOREIGN", "-m", "comment", "--comment", "leads not to -j SVCP-FILTER", "-j", "ACCEPT")
		run(t, f+variant, "-A", "INPUT", "-i", "foreign0", "-j", "FOREIGN")
		run(t, f+variant, "-t", "nat", "-A", "POSTROUTING", "-o", "foreign0", "-j", "MASQUERADE")
	}
	run(t, "ipset", "create", "FOREIGN", "hash:ip")
	run(t, "ipset", "create", "SVCP", "hash:ip")
}

func run(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return string(out)
}

func newBackend(t testing.TB, fam proxier.Family) *iptables.Backend {
	t.Helper()
	b, err := iptables.New(context.Background(), fam)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

// everywhere runs a test for both variants and families, each in its own namespace.
func everywhere(t *testing.T, test func(*host)) {
	for _, variant := range []string{"nft", "legacy"} {
		for _, fam := range []proxier.Family{proxier.IPv4, proxier.IPv6} {
			t.Run(variant+" "+fam.String(), func(t *testing.T) {
				enterNamespace(t, variant)
				h := &host{TB: t, fam: fam, variant: variant, world: filtertest.NewWorld(fam), backend: newBackend(t, fam)}
				if want := h.tool(""); h.backend.Tool() != want {
					t.Fatalf("tool: got %s, want %s", h.backend.Tool(), want)
				}
				test(h)
			})
		}
	}
}

// tool returns the name of a program: suffix is "", "-save" or "-restore".
func (h *host) tool(suffix string) string {
	if h.fam == proxier.IPv6 {
		return "ip6tables-" + h.variant + suffix
	}
	return "iptables-" + h.variant + suffix
}

func (h *host) iptables(words string) {
	h.Helper()
	run(h, h.tool(""), strings.Fields(words)...)
}

func (h *host) sync(delta *proxier.Delta) {
	h.Helper()
	if err := h.backend.Sync(context.Background(), h.world.State, delta); err != nil {
		h.Fatal(err)
	}
}

func (h *host) planned() []proxier.Change {
	h.Helper()
	changes, err := h.backend.Plan(context.Background(), h.world.State)
	if err != nil {
		h.Fatal(err)
	}
	return changes
}

// settled fails the test if the kernel does not hold the State exactly.
func (h *host) settled(after string) {
	h.Helper()
	if changes := h.planned(); len(changes) > 0 {
		h.Fatalf("%s: still to change: %v", after, changes)
	}
}

// volatile is what iptables-save and ipset print and nobody sets.
var volatile = regexp.MustCompile(`(?m)^#.*\n| \[\d+:\d+\]|(?: (?:bucketsize|hashsize|initval) \w+)`)

// everything returns all that the kernel holds, ours and of others.
func (h *host) everything() string {
	h.Helper()
	text := run(h, h.tool("-save"))
	names := run(h, "ipset", "list", "-n")
	return volatile.ReplaceAllString(text, "") + names
}

// fill puts services of all kinds into the State.
func (h *host) fill(pick filtertest.Pick, n int) {
	for i := range n {
		h.world.Put(source.Key{Namespace: "default", Name: fmt.Sprintf("svc-%d", i)}, h.world.Random(pick, i))
	}
}

func seeded(seed uint64) filtertest.Pick { return rand.New(rand.NewPCG(seed, 0)).IntN }
