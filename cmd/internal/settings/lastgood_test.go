package settings

import (
	"os"
	"testing"

	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/internal/fatal"
)

// A last good svcproxy.toml that was cut off to nothing is none: its defaults were never in use.
func TestEmptyLastGoodSettings(t *testing.T) {
	dir, state := t.TempDir(), t.TempDir()
	for path, text := range map[string]string{dir + "/svcproxy.toml": "broken\n", state + "/svcproxy.toml": ""} {
		fatal.If(t, os.WriteFile(path, []byte(text), 0o600))
	}
	c := Config{ConfigDir: dir, StateDir: state, Load: configs.Load}
	if _, err := Open(c); err == nil {
		t.Error("no error")
	}
	fatal.If(t, os.WriteFile((&Watcher{Config: c}).lastGood(), []byte("zone = \"a\"\n"), 0o600))
	if w, err := Open(c); err != nil || !w.stale || w.Fixed.Zone != "a" {
		t.Errorf("open with a copy: %+v, %v", w, err)
	}
}
