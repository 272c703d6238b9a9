//go:build netns

package hostsetup

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"svcproxy/configs"
)

func TestForwardDrops(t *testing.T) {
	namespace(t)
	run := func(words string) {
		t.Helper()
		f := strings.Fields(words)
		if out, err := exec.Command(f[0], f[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", words, err, out)
		}
	}
	if got := forwardDrops(); len(got) > 0 {
		t.Errorf("nothing drops, but: %q", got)
	}
	run("iptables-nft -P FORWARD DROP")
	run("iptables-nft -P INPUT DROP") // is not asked for
	run("ip6tables-legacy -P FORWARD DROP")
	run("nft add table inet host")
	run("nft add chain inet host forwarded { type filter hook forward priority 0; policy drop; }")
	want := []string{"inet host forwarded", "ip filter FORWARD", "ip6tables-legacy filter FORWARD"}
	if diff := cmp.Diff(want, forwardDrops()); diff != "" {
		t.Errorf("chains that drop (-want +got):\n%s", diff)
	}
	if got := Verify(configs.Settings{}, "nftables"); len(got) != 3 || !strings.Contains(got[1], "ip filter FORWARD") {
		t.Errorf("warnings in nftables mode: %q", got)
	}
	if got := Verify(configs.Settings{}, "iptables"); len(got) > 0 {
		t.Errorf("warnings in iptables mode, which opens them for its traffic: %q", got)
	}
}
