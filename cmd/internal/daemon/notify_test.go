//go:build !nokubernetes

package daemon

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/internal/pace"
)

// A daemon calls the program that settings name, those of a reload too, and warns while it fails.
func TestNotify(t *testing.T) {
	addr, dir := freePort(t), t.TempDir()
	out, bad, program := filepath.Join(dir, "out"), filepath.Join(dir, "bad"), filepath.Join(dir, "notify")
	script := "#!/bin/sh\ntest ! -e " + bad + " && echo $1 $SVCPROXY_NODE $SVCPROXY_KIND ${SVCPROXY_NAME##*/} $SVCPROXY_WAS $SVCPROXY_STATE >>" + out + "\n"
	fatal.If(t, os.WriteFile(program, []byte(script), 0o700))
	settings := func(arg string) string {
		return "http_address = \"" + addr + "\"\nnode_name = \"n1\"\n[notify]\ncommand = [\"" + program + "\", \"" + arg + "\"]\n"
	}
	r := launch(t, settings("one"))
	r.ready()
	called := func(line string) bool {
		text, err := os.ReadFile(out)
		return err == nil && strings.Contains(string(text), line+"\n")
	}
	toggled := time.Time{}
	texts := []string{"nonsense", web}
	r.eventually("a call", func() bool { // what comes before the first look is no change
		if pace.Over(toggled, 3*time.Second) {
			r.write("web.toml", texts[0])
			texts[0], texts[1], toggled = texts[1], texts[0], time.Now()
		}
		return called("one n1 file web.toml accepted stale")
	})
	r.write("web.toml", web)
	r.eventually("another one", func() bool { return called("one n1 file web.toml stale accepted") })

	fatal.If(t, os.WriteFile(bad, nil, 0o600))
	r.write("web.toml", "nonsense")
	const failing = "[notify] failed for 1 changes; retrying: "
	warnings := func() string { return strings.Join(r.status().Warnings, "\n") }
	r.eventually("a warning", func() bool { return strings.Contains(warnings(), failing) })
	if _, body := get(t, addr, "/metrics"); !strings.Contains(body, `svcproxy_notify_calls_total{outcome="failed"}`) {
		t.Errorf("metrics:\n%s", body)
	}
	fatal.If(t, os.Remove(bad))
	r.write("svcproxy.toml", settings("two"))
	r.eventually("a call of other settings", func() bool { return called("two n1 file web.toml accepted stale") })
	r.eventually("no warning", func() bool { return !strings.Contains(warnings(), "[notify]") })
	http.DefaultClient.CloseIdleConnections()
}
