//go:build netns

package hostsetup

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"svcproxy.dev/svcproxy/cmd/internal/modes"
	"svcproxy.dev/svcproxy/configs"
)

func TestForwardDrops(t *testing.T) {
	namespace(t)
	nftables, ipvs := modes.OfSetting("nftables")[0], modes.OfSetting("ipvs")[0]
	run := func(words string) {
		t.Helper()
		f := strings.Fields(words)
		if out, err := exec.Command(f[0], f[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", words, err, out)
		}
	}
	if got := forwardDrops(t.Context(), nftables.Forward); len(got) > 0 {
		t.Errorf("nothing drops, but: %q", got)
	}
	run("iptables-nft -P FORWARD DROP")
	run("iptables-nft -P INPUT DROP") // is not asked for
	run("ip6tables-legacy -P FORWARD DROP")
	run("nft add table inet host")
	run("nft add chain inet host forwarded { type filter hook forward priority 0; policy drop; }")
	want := []string{"inet host forwarded", "ip filter FORWARD", "ip6tables-legacy filter FORWARD"}
	if diff := cmp.Diff(want, forwardDrops(t.Context(), nftables.Forward)); diff != "" {
		t.Errorf("chains that drop (-want +got):\n%s", diff)
	}
	if got := Verify(t.Context(), configs.Settings{}, nftables); len(got) != 3 || !strings.Contains(got[1], "ip filter FORWARD") {
		t.Errorf("warnings in nftables mode: %q", got)
	}
	// Iptables mode will use the variant that holds rules, or does.
	run("iptables-nft -A FORWARD -i lo -j ACCEPT")
	run("ip6tables-legacy -A FORWARD -i lo -j ACCEPT")
	for _, step := range []struct {
		words string
		want  []string
	}{
		{"true", []string{"inet host forwarded"}}, // before the first sync
		{"iptables-nft -N SVCP-FORWARD", []string{"inet host forwarded"}},
		{"ip6tables-legacy -N SVCP-FORWARD", []string{"inet host forwarded"}},
		{"nft add chain ip filter fw { type filter hook forward priority 0; policy drop; }", []string{"inet host forwarded", "ip filter fw"}},
		{"nft delete chain ip filter fw", []string{"inet host forwarded"}},
		{"iptables-legacy -P FORWARD DROP", []string{"inet host forwarded", "iptables-legacy filter FORWARD"}},
	} {
		run(step.words)
		if diff := cmp.Diff(step.want, forwardDrops(t.Context(), iptables.Forward)); diff != "" {
			t.Errorf("%s: chains that iptables mode cannot overrule (-want +got):\n%s", step.words, diff)
		}
	}
	if got := Verify(t.Context(), configs.Settings{}, ipvs); len(got) < 2 || !strings.Contains(strings.Join(got, "\n"), "the policy of inet host forwarded is drop, which ipvs mode cannot overrule") {
		t.Errorf("warnings in ipvs mode: %q", got)
	}
}
