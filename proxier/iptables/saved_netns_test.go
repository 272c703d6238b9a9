//go:build netns

package iptables_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/netutil/netnstest"
	"svcproxy.dev/svcproxy/proxier/backendtest"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// snippet is what docs/modes.md says to those who save rules by themselves.
func snippet(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/modes.md")
	fatal.If(t, err)
	m := regexp.MustCompile("`iptables-save \\| (sed -E '[^']+') > rules.v4`").FindSubmatch(text)
	if m == nil {
		t.Fatal("docs/modes.md does not say how to leave out our rules")
	}
	return string(m[1])
}

// Saved rules are restored in a fresh namespace, as at boot, once ours are taken
// out, by the plugin of netfilter-persistent and by what docs/modes.md says; those of others are
// there then, and ours are made again.
func TestSavedRules(t *testing.T) {
	for _, variant := range []string{"nft", "legacy"} {
		for _, fam := range []policy.Family{policy.IPv4, policy.IPv6} {
			t.Run(variant+" "+fam.String(), func(t *testing.T) { testSavedRules(t, variant, fam) })
		}
	}
}

func testSavedRules(t *testing.T, variant string, fam policy.Family) {
	dir := t.TempDir()
	file := filepath.Join(dir, map[policy.Family]string{policy.IPv4: "rules.v4", policy.IPv6: "rules.v6"}[fam])
	h := newHost(t, variant, fam)
	h.iptables("-P FORWARD DROP")
	foreign := foreignLines(run(t, h.tool("-save")))
	h.Fill(seeded(21), 40)
	h.Sync(nil)
	h.iptables("-N SVCP-10.96.0.0/16") // as some of ours in nat are called
	h.iptables("-A FOREIGN -g SVCP-10.96.0.0/16")
	h.iptables("-A INPUT -m set ! --match-set " + h.set("SVCP-VIPS") + " dst -j ACCEPT")
	saved := run(t, h.tool("-save"), map[string][]string{"legacy": {"-c"}}[variant]...) // with counters
	write(t, file, saved)
	if strings.Count(saved, "SVCP-") < 100 {
		t.Fatalf("few rules were saved:\n%s", saved)
	}

	netnstest.Enter(t)
	if out, err := exec.Command("sh", "-c", h.tool("-restore")+" < "+file).CombinedOutput(); err == nil {
		t.Errorf("all of it can be restored: nothing needs to be taken out:\n%s", out)
	}
	stripped := run(t, "sh", "-c", snippet(t)+" < "+file)
	t.Setenv("SVCPROXY_SAVED_RULES", dir)
	for _, what := range []string{"save", "flush", "start", "start"} {
		run(t, "../../systemd/netfilter-persistent/05-svcproxy", what)
		if text := run(t, "cat", file); what != "start" && text != saved || what == "start" && text != stripped {
			t.Errorf("%s: got\n%s", what, text)
		}
	}
	run(t, "sh", "-c", h.tool("-restore")+" < "+file)
	if diff := cmp.Diff(foreign, foreignLines(run(t, h.tool("-save")))); diff != "" {
		t.Errorf("rules of others (-before +after):\n%s", diff)
	}
	h.Start()
	h.Sync(nil)
	h.Settled("sync after the restore")
	h.Sync(h.World.Put(source.Key{Namespace: "default", Name: "svc-1"}, nil))
	h.Settled("delta after the restore")
}

// foreignLines returns what others have of saved rules, with the policy of FORWARD.
func foreignLines(text string) []string {
	var lines []string
	for line := range strings.Lines(backendtest.WithoutCounters(text)) {
		if strings.HasPrefix(line, "-A ") || strings.HasPrefix(line, ":FOR") {
			lines = append(lines, line)
		}
	}
	slices.Sort(lines) // tables come in another order after a restore
	return lines
}

func write(t *testing.T, file, text string) {
	t.Helper()
	fatal.If(t, os.WriteFile(file, []byte(text), 0o640))
}
