//go:build netns

package monitoring

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// tool runs promtool in the folder of what is shipped.
func tool(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.Command("promtool", args...)
	cmd.Dir = shipped
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// The rules are good, and fire when and for what they should.
func TestRules(t *testing.T) {
	tool(t, "check", "rules", "svcproxy.rules.yml")
	tool(t, "test", "rules", "svcproxy.rules.test.yml", "svcproxy.rules.days.test.yml")
}

var alertName = regexp.MustCompile(`(?m)^\s+- alert: (\S+)$`)

// No alert is without a test that it fires, nor without a line for operators.
func TestAlertsAreTestedAndDocumented(t *testing.T) {
	tests := read(t, filepath.Join(shipped, "svcproxy.rules.test.yml")) + read(t, filepath.Join(shipped, "svcproxy.rules.days.test.yml"))
	docs := read(t, "../../docs/metrics.md")
	alerts := alertName.FindAllStringSubmatch(read(t, filepath.Join(shipped, "svcproxy.rules.yml")), -1)
	if len(alerts) == 0 {
		t.Fatal("no alerts found")
	}
	for _, a := range alerts {
		if !strings.Contains(tests, `alertname="`+a[1]+`",alertstate="firing"`) {
			t.Errorf("no test has %s fire", a[1])
		}
		if !strings.Contains(docs, "| `"+a[1]+"` |") {
			t.Errorf("docs/metrics.md has no line for %s", a[1])
		}
	}
}
