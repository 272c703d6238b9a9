package file

import (
	"os"
	"strings"
	"testing"
	"testing/synctest"
)

// A file that others can change from now on is at fault, though its text is the same. What was accepted of it stays,
// also over a restart, which does not run its programs. When nobody else can change it any more they run again.
func TestProgramsOfAcceptedFile(t *testing.T) {
	h := newHost(t)
	h.real, h.guardPrograms = true, true
	const withProgram = "[[services]]\nname = \"a\"\nvips = [\"10.96.0.1\"]\nports = [{ port = 80 }]\nendpoints = [\"10.1.1.1\"]\n" +
		"health_check = { type = \"exec\", command = [\"/bin/true\"] }\n"
	const barred = "svcproxy runs no program that this file names: DIR/a.toml can be changed by everybody"
	synctest.Test(t, func(t *testing.T) {
		h.T, h.fixture.T = t, t
		is := func(when, runs, states string) {
			t.Helper()
			h.src.mu.Lock()
			defer h.src.mu.Unlock()
			good := h.src.files["a.toml"].good
			if good == nil || strings.ReplaceAll(good.Services[0].HealthCheck.Barred, h.dir, "DIR") != runs {
				t.Errorf("%s: in use: %+v", when, good)
			}
			if got := string(h.src.files["a.toml"].state); got != states {
				t.Errorf("%s: the file is %s, want %s", when, got, states)
			}
		}
		h.write("a.toml", withProgram)
		h.start()
		moment()
		is("at first", "", "accepted")
		h.change(func() { check(t, os.Chmod(h.path("a.toml"), 0o666)) })
		is("all can change it", "", "stale")
		if got := h.faults(); !strings.Contains(got, barred) {
			t.Errorf("faults: %s", got)
		}
		h.stop()
		h.start()
		moment()
		is("after a restart", barred, "stale")
		h.change(func() { check(t, os.Chmod(h.path("a.toml"), 0o644)) })
		is("nobody else again", "", "accepted")
		h.stop()
		h.checkStore()
	})
}
