//go:build netns

package nftables_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"svcproxy/netutil/netnstest"
	"svcproxy/proxier"
	"svcproxy/proxier/filter/filtertest"
	"svcproxy/proxier/nftables"
	"svcproxy/source"
)

// A host is a network namespace with the tables of somebody else, and what our
// tests do with one family of it.
type host struct {
	testing.TB
	fam     proxier.Family
	backend *nftables.Backend
	world   *filtertest.World
}

// foreign is what somebody else has in a namespace: tables of other families with
// our name, and one that looks like ours.
const foreign = `
table inet svcproxy {
	map frontends { type ipv4_addr : verdict; elements = { 192.0.2.77 : drop }; }
	chain prerouting { type filter hook prerouting priority 0; ip daddr vmap @frontends; }
}
table ip foreign {
	chain services { type nat hook postrouting priority srcnat; oifname "foreign0" masquerade; }
	chain others { type filter hook input priority 5; ip saddr 192.0.2.77 drop; }
}
table ip6 svcproxyx {
	set frontends { type ipv6_addr; elements = { 2001:db8::77 }; }
	chain others { type filter hook input priority 5; ip6 saddr @frontends drop; }
}
`

// enterNamespace moves the test into a network namespace of its own.
func enterNamespace(t testing.TB) {
	t.Helper()
	netnstest.Enter(t)
}

func run(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return string(out)
}

func runInput(t testing.TB, input, name string, args ...string) {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Stdin = strings.NewReader(input)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v\n%s\n%s", name, args, err, input, out)
	}
}

func nft(t testing.TB, script string) {
	t.Helper()
	runInput(t, script, "nft", "-f", "-")
}

func newBackend(t testing.TB, fam proxier.Family) *nftables.Backend {
	t.Helper()
	b, err := nftables.New(context.Background(), fam)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

// everywhere runs a test for both families, each in its own namespace.
func everywhere(t *testing.T, test func(*host)) {
	for _, fam := range []proxier.Family{proxier.IPv4, proxier.IPv6} {
		t.Run(fam.String(), func(t *testing.T) {
			enterNamespace(t)
			nft(t, foreign)
			test(&host{TB: t, fam: fam, world: filtertest.NewWorld(fam), backend: newBackend(t, fam)})
		})
	}
}

// table names our table as nft does.
func (h *host) table() string {
	if h.fam == proxier.IPv6 {
		return "ip6 svcproxy"
	}
	return "ip svcproxy"
}

// nft runs a script in which TABLE stands for our table, and SLOTS for one of
// its maps of slots.
func (h *host) nft(script string) {
	h.Helper()
	slots := regexp.MustCompile(` slots-\d+ `).FindString(strings.Join(nftables.Text(h.world.State), "\n"))
	nft(h, strings.NewReplacer("TABLE", h.table(), "SLOTS", slots).Replace(script))
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
		h.Fatalf("%s: %d still to change: %v", after, len(changes), changes[:min(20, len(changes))])
	}
}

// everything returns all that the kernel holds, ours and of others.
func (h *host) everything() string {
	h.Helper()
	return run(h, "nft", "-a", "list", "ruleset")
}

// fill puts services of all kinds into the State.
func (h *host) fill(pick filtertest.Pick, n int) {
	for i := range n {
		h.world.Put(source.Key{Namespace: "default", Name: fmt.Sprintf("svc-%d", i)}, h.world.Random(pick, i))
	}
}

// short makes a listing short enough to read: a few targets only.
func short(pick filtertest.Pick) filtertest.Pick {
	return func(n int) int {
		if n == 7 { // numbers of targets, the larger the later
			return pick(5)
		}
		return pick(n)
	}
}

func seeded(seed uint64) filtertest.Pick { return rand.New(rand.NewPCG(seed, 0)).IntN }

// A second sync sends nothing: not even the handles of objects change.
func TestReadsBackWhatItWrote(t *testing.T) {
	everywhere(t, func(h *host) {
		h.fill(seeded(1), 15)
		if changes := h.planned(); len(changes) < 100 {
			h.Fatalf("planned on an empty host: %v", changes)
		}
		h.sync(nil)
		h.settled("first sync")
		before := h.everything()
		h.sync(nil)
		if diff := cmp.Diff(before, h.everything()); diff != "" {
			h.Errorf("second sync changed (-before +after):\n%s", diff)
		}
		h.backend = newBackend(h, h.fam)
		h.sync(nil)
		if diff := cmp.Diff(before, h.everything()); diff != "" {
			h.Errorf("sync after a restart changed (-before +after):\n%s", diff)
		}
	})
}

// A name that is longer than a comment is written once, as any other.
func TestLongNames(t *testing.T) {
	everywhere(t, func(h *host) {
		res := h.service("", 10, time.Hour, 1, 2)
		label := func(letter string) string { return strings.Repeat(letter, 63) }
		name := proxier.ServicePortName{Key: source.Key{Namespace: label("n"), Name: label("s")}, Port: label("p")}
		res.Key = name.Key
		for _, f := range res.Frontends {
			f.ServicePort = name
		}
		for _, p := range res.Pools {
			p.ServicePort = name
		}
		h.sync(h.world.Put(res.Key, res))
		h.settled("first sync")
		if !strings.Contains(h.everything(), label("n")+"/"+label("s")[:60]) {
			h.Errorf("the name is not listed:\n%s", h.everything())
		}
		h.backend.Doubt()
		if differs, _ := h.looks(); differs {
			h.Error("a look finds a difference")
		}
		before := h.everything()
		h.backend = newBackend(h, h.fam)
		h.sync(nil)
		if diff := cmp.Diff(before, h.everything()); diff != "" {
			h.Errorf("sync after a restart changed (-before +after):\n%s", diff)
		}
		h.sync(h.world.Put(res.Key, nil))
		h.settled("removed")
	})
}

func TestDeltas(t *testing.T) {
	everywhere(t, func(h *host) {
		pick := seeded(2)
		h.fill(pick, 8)
		h.sync(nil)
		for step := range 60 {
			number := pick(12)
			key := source.Key{Namespace: "default", Name: fmt.Sprintf("svc-%d", number)}
			var res *proxier.Resolved
			if pick(4) > 0 {
				res = h.world.Random(pick, number)
			}
			h.sync(h.world.Put(key, res))
			h.settled(fmt.Sprintf("delta %d", step))
		}
	})
}

// nft lists the table, with rules and elements in the words that plan and the
// golden scenarios use.
func TestListing(t *testing.T) {
	everywhere(t, func(h *host) {
		pick := seeded(3)
		h.fill(short(pick), 6)
		h.sync(nil)
		family, name, _ := strings.Cut(h.table(), " ")
		listing := run(h, "nft", "list", "table", family, name)
		words := strings.NewReplacer("\n\t\t\t     ", " ").Replace
		listing = words(listing) + " "
		for _, line := range nftables.Text(h.world.State) {
			_, text, isElement := strings.Cut(strings.TrimSuffix(line, " }"), " { ")
			if !isElement || strings.Contains(line, "add rule") {
				_, text, _ = strings.Cut(line, h.table()+" ")
				_, text, _ = strings.Cut(text, " ")
			}
			if !strings.Contains(listing, words(text)) {
				h.Errorf("nft does not list\n%s", line)
			}
		}
	})
}
