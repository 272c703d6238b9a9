//go:build netns

package iptables_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/netutil/netnstest"
	"svcproxy.dev/svcproxy/proxier/backendtest"
	"svcproxy.dev/svcproxy/proxier/iptables"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// A host is a network namespace in which one variant of iptables is in use, by
// others too, and what our tests do with one family of it.
type host struct {
	*backendtest.Host[*iptables.Backend]
	variant string
}

var run, seeded = backendtest.Command, backendtest.Seeded

// enterNamespace moves the test into a network namespace of its own, with the
// rules and sets of another program.
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

func newHost(t testing.TB, variant string, fam policy.Family) *host {
	t.Helper()
	enterNamespace(t, variant)
	h := &host{&backendtest.Host[*iptables.Backend]{TB: t, Family: fam, World: backendtest.NewWorld(fam)}, variant}
	h.Open = func() (*iptables.Backend, error) {
		b, err := iptables.New(context.Background(), fam)
		if err == nil {
			b.SetLog(slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})))
		}
		return b, err
	}
	h.Host.Dump, h.Objects, h.Named, h.Compare = h.dump, h.objects, backendtest.FilterNamed, iptables.Compare
	h.Foreign = func() { h.iptables("-A FOREIGN -j RETURN"); run(t, "ipset", "add", "FOREIGN", "192.0.2.1") }
	for _, d := range harms {
		h.Damages = append(h.Damages, backendtest.Damage{Name: d.name, Do: func() { d.harm(h) }})
	}
	h.Start()
	return h
}

// everywhere runs a test for both variants and families, each in its own namespace.
func everywhere(t *testing.T, test func(*host)) {
	for _, variant := range []string{"nft", "legacy"} {
		for _, fam := range []policy.Family{policy.IPv4, policy.IPv6} {
			t.Run(variant+" "+fam.String(), func(t *testing.T) {
				h := newHost(t, variant, fam)
				if want := h.tool(""); h.Backend.Tool() != want {
					t.Fatalf("tool: got %s, want %s", h.Backend.Tool(), want)
				}
				test(h)
			})
		}
	}
}

func TestConformance(t *testing.T) {
	backendtest.Run(t, func(t *testing.T, test func(*backendtest.Host[*iptables.Backend])) {
		everywhere(t, func(h *host) {
			h.Slow = h.Family == policy.IPv6 // what both families do alike is tried at length in one
			test(h.Host)
		})
	})
}

// tool returns the name of a program: suffix is "", "-save" or "-restore".
func (h *host) tool(suffix string) string {
	if h.Family == policy.IPv6 {
		return "ip6tables-" + h.variant + suffix
	}
	return "iptables-" + h.variant + suffix
}

func (h *host) iptables(words string) {
	h.Helper()
	run(h, h.tool(""), strings.Fields(words)...)
}

// dump returns what the kernel holds of the family's rules, all sets, and the tables that keep connections.
func (h *host) dump() string {
	h.Helper()
	return backendtest.Saved(h, h.tool("-save")) + run(h, "sh", "-c", "nft list tables | grep SVCP || true")
}

func (h *host) objects() map[string]string {
	h.Helper()
	all := map[string]string{}
	backendtest.FilterObjects(all, strings.TrimSuffix(h.tool(""), "-"+h.variant), backendtest.Saved(h, h.tool("-save")))
	for table := range strings.Lines(run(h, "nft", "list", "tables")) {
		if strings.Contains(table, "SVCP-") {
			all[strings.TrimSpace(table)] = ""
		}
	}
	return all
}
