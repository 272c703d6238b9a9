//go:build netns

package filter

import (
	"context"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/netutil/netnstest"
	"svcproxy.dev/svcproxy/netutil/xtables"
	"svcproxy.dev/svcproxy/proxier/backendtest"
	"svcproxy.dev/svcproxy/proxier/filter/layout"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// Both variants of iptables have the same lists of clients, which last as long as
// rules of either name them: who goes from one variant to the other, which makes
// before it breaks, takes them along.
func TestVariantsShareClients(t *testing.T) {
	netnstest.Enter(t)
	ctx := context.Background()
	tools, err := xtables.Installed(ctx, false)
	if err != nil || len(tools) != 2 {
		t.Fatalf("want both variants of iptables: %v, %v", tools, err)
	}
	w := backendtest.NewWorld(policy.IPv4)
	s := backendtest.Service{Name: "sticky", Protocol: source.TCP, Affinity: time.Hour, Targets: backendtest.Targets(policy.IPv4, 0, 2)}
	pool, _ := s.Pools()
	route := backendtest.Route(pool, policy.NoOne, policy.Reject)
	res := s.Resolve(&policy.Frontend{Key: policy.FrontendKey{Addr: backendtest.Addr(policy.IPv4, "vip", 1), Port: 80}, Outside: route, FromLocal: route})
	w.Put(res.Key, res)

	list, client := layout.RecentList(pool, pool.Targets[1]), netip.MustParseAddr("192.0.2.7")
	for i, choice := range []xtables.Choice{{Use: tools[0]}, {Use: tools[1], Stale: tools[:1]}, {Use: tools[0], Stale: tools[1:]}} {
		k, err := open(ctx, policy.IPv4, &choice)
		fatal.If(t, err)
		resync(t, k, layout.NewRules(policy.IPv4), w)
		if i == 0 {
			fatal.If(t, os.WriteFile("/proc/thread-self/net/xt_recent/"+list, []byte("+"+client.String()+"\n"), 0o600))
		}
		for _, former := range choice.Stale {
			if tab, err := former.Read(ctx, "nat", layout.Prefix); err != nil || len(tab.Chains) > 0 {
				t.Errorf("%s still holds %v, %v", former, tab, err)
			}
		}
		recent, err := xtables.ReadRecent(list)
		if err != nil || !slices.ContainsFunc(recent, func(r xtables.Recent) bool { return r.Addr == client && r.Age < time.Minute }) {
			t.Errorf("%s: client %s is not on its list: %v, %v", choice.Use, client, recent, err)
		}
		if err := k.Close(); err != nil {
			t.Error(err)
		}
	}
}

// What rules of one mode only need is asked for by that mode only.
func TestNeedsOfTheMode(t *testing.T) {
	netnstest.Enter(t)
	backendtest.WithoutExtension(t, "xt_ipvs")
	ctx := context.Background()
	for _, fam := range []policy.Family{policy.IPv4, policy.IPv6} {
		k, err := Open(ctx, fam)
		fatal.If(t, err)
		defer k.Close()
		if err := layout.NewUnsupported(k.Probe, layout.NewRules(fam)).Probe(ctx); err != nil {
			t.Errorf("iptables mode: %v", err)
		}
		want := "this host lacks ipvs, which " + k.Tool() + " needs: "
		if err := layout.NewUnsupported(k.Probe, layout.NewIPVSRules(fam)).Probe(ctx); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ipvs mode: got %v, want %s", err, want)
		}
	}
}
