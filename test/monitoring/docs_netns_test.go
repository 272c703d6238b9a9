//go:build netns

package monitoring

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
)

// What docs/first-service.md has a newcomer paste is a configuration of Prometheus, with the shipped rules.
func TestDocsPrometheus(t *testing.T) {
	m := regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$").FindStringSubmatch(read(t, "../../docs/first-service.md"))
	if m == nil {
		t.Fatal("docs/first-service.md has no configuration of Prometheus")
	}
	dir := t.TempDir()
	for name, text := range map[string]string{"prometheus.yml": m[1], "svcproxy.rules.yml": read(t, filepath.Join(shipped, "svcproxy.rules.yml"))} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	out, err := exec.CommandContext(t.Context(), "promtool", "check", "config", filepath.Join(dir, "prometheus.yml")).CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	if want := regexp.MustCompile(`SUCCESS: \d+ rules found`); !want.Match(out) {
		t.Errorf("no %s in\n%s", want, out)
	}
}
