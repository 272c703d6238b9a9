package daemon

import (
	"log/slog"
	"os"
	"testing"

	"svcproxy.dev/svcproxy/configs"
)

// A last good svcproxy.toml that was cut off to nothing is none: its defaults were never in use.
func TestEmptyLastGoodSettings(t *testing.T) {
	dir, state := t.TempDir(), t.TempDir()
	for path, text := range map[string]string{dir + "/svcproxy.toml": "broken\n", state + "/svcproxy.toml": ""} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	w := &settingsWatcher{configDir: dir, stateDir: state, load: configs.Load, log: slog.New(slog.DiscardHandler)}
	if _, err := w.open(); err == nil || w.stale {
		t.Errorf("open: %v, stale %v; want an error", err, w.stale)
	}
	if err := os.WriteFile(w.lastGood(), []byte("zone = \"a\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if s, err := w.open(); err != nil || !w.stale || s.Zone != "a" {
		t.Errorf("open with a copy: %q, %v, stale %v", s.Zone, err, w.stale)
	}
}
