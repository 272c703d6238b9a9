//go:build netns

package nftables_test

import (
	"context"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"svcproxy.dev/svcproxy/netutil/netnstest"
	"svcproxy.dev/svcproxy/proxier/backendtest"
	"svcproxy.dev/svcproxy/proxier/nftables"
	"svcproxy.dev/svcproxy/proxier/nftables/nfttest"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// A host is a network namespace, and what our tests do with one family of it.
type host struct {
	*backendtest.Host[*nftables.Backend]
}

var run, seeded = backendtest.Command, backendtest.Seeded

// foreign is what other programs have in a namespace: tables of other families with
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

func nft(t testing.TB, script string) {
	t.Helper()
	backendtest.CommandInput(t, script, "nft", "-f", "-")
}

func newHost(t testing.TB, fam policy.Family) *host {
	t.Helper()
	h := &host{&backendtest.Host[*nftables.Backend]{TB: t, Family: fam, World: backendtest.NewWorld(fam)}}
	h.Open = func() (*nftables.Backend, error) { return nftables.New(context.Background(), fam, nftables.Options{}) }
	h.Host.Dump, h.Objects, h.Named, h.Compare = h.dump, h.objects, h.named, nftables.Compare
	h.Foreign = func() { nft(h, "add element inet svcproxy frontends { 192.0.2.78 : drop }\nadd table ip others\n") }
	for _, d := range harms {
		h.Damages = append(h.Damages, backendtest.Damage{Name: d.name, Do: func() { h.harm(d.name, d.script) }})
	}
	h.Fixed = []*policy.Resolved{h.drops(), h.keeps()}
	h.Start()
	return h
}

// everywhere runs a test for both families, each in its own namespace.
func everywhere(t *testing.T, test func(*host)) {
	for _, fam := range []policy.Family{policy.IPv4, policy.IPv6} {
		t.Run(fam.String(), func(t *testing.T) {
			netnstest.Enter(t)
			nft(t, foreign)
			test(newHost(t, fam))
		})
	}
}

func TestConformance(t *testing.T) {
	backendtest.Run(t, func(t *testing.T, test func(*backendtest.Host[*nftables.Backend])) {
		everywhere(t, func(h *host) { test(h.Host) })
	})
}

// table names our table as nft does.
func (h *host) table() string {
	if h.Family == policy.IPv6 {
		return "ip6 svcproxy"
	}
	return "ip svcproxy"
}

// nft runs a script in which TABLE stands for our table, and SLOTS for one of
// its maps of slots.
func (h *host) nft(script string) {
	h.Helper()
	slots := regexp.MustCompile(` slots-\d+ `).FindString(strings.Join(nfttest.Text(h.World.State), "\n"))
	nft(h, strings.NewReplacer("TABLE", h.table(), "SLOTS", slots).Replace(script))
}

// everything returns all that the kernel holds, ours and foreign, with the handles of objects.
func (h *host) everything() string {
	h.Helper()
	return run(h, "nft", "-a", "list", "ruleset")
}

// dump returns the lines of everything in a stable order, without handles. The kernel may still be
// growing a set that was just filled, and then lists some elements twice, or not at all: two dumps that are alike have all.
func (h *host) dump() string {
	h.Helper()
	last := h.dumpOnce()
	for range 20 { // clients of affinity, whose times pass, are never alike
		now := h.dumpOnce()
		if now == last {
			break
		}
		last = now
	}
	return last
}

func (h *host) dumpOnce() string {
	h.Helper()
	lines := strings.Split(handles.ReplaceAllString(h.everything(), ""), "\n")
	for i, line := range lines {
		line = strings.TrimPrefix(strings.TrimSpace(line), "elements = { ")
		lines[i] = strings.TrimSuffix(strings.TrimSuffix(line, " }"), ",")
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// handles are numbers that the kernel gives; what is repaired gets new ones.
var handles = regexp.MustCompile(` # handle \d+`)

// A name that is longer than a comment is written once, as any other.
func TestLongNamesAreWrittenOnce(t *testing.T) {
	everywhere(t, func(h *host) {
		res := h.service("", 10, time.Hour, 1, 2)
		label := func(letter string) string { return strings.Repeat(letter, 63) }
		name := policy.ServicePortName{Key: source.Key{Namespace: label("n"), Name: label("s")}, Port: label("p")}
		res.Key = name.Key
		for _, f := range res.Frontends {
			f.ServicePort = name
		}
		for _, p := range res.Pools {
			p.ServicePort = name
		}
		h.keepHooks()
		h.Sync(h.World.Put(res.Key, res))
		h.Settled("first sync")
		if !strings.Contains(h.everything(), label("n")+"/"+label("s")[:60]) {
			h.Errorf("the name is not listed:\n%s", h.everything())
		}
		h.Backend.Recheck()
		if h.Look() {
			h.Error("a look finds a difference")
		}
		before := h.everything()
		h.Restart()
		h.Sync(nil)
		if diff := cmp.Diff(before, h.everything()); diff != "" {
			h.Errorf("sync after a restart changed (-before +after):\n%s", diff)
		}
		h.Sync(h.World.Put(res.Key, nil))
		h.Settled("removed")
	})
}

// nft lists the table, with rules and elements in the words that plan and the
// golden scenarios use.
func TestListingUsesTheWordsOfPlan(t *testing.T) {
	everywhere(t, func(h *host) {
		pick := seeded(3)
		h.Fill(backendtest.Short(pick), 6)
		h.Sync(nil)
		family, name, _ := strings.Cut(h.table(), " ")
		listing := run(h, "nft", "list", "table", family, name)
		words := strings.NewReplacer("\n\t\t\t     ", " ").Replace
		listing = words(listing) + " "
		for _, line := range nfttest.Text(h.World.State) {
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
