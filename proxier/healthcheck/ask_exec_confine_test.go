package healthcheck

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/source"
)

// aProgram writes a script with this mode into a directory with that one, and returns its path.
func aProgram(t *testing.T, script string, mode, ofDir os.FileMode) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	fatal.If(t, err)
	path := filepath.Join(dir, "check")
	fatal.If(t, os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o755))
	for path, mode := range map[string]os.FileMode{path: mode, dir: ofDir} {
		fatal.If(t, os.Chmod(path, mode))
	}
	return path
}

// TestExecOfOthers has programs that others can change: what they do would be done as root.
func TestExecOfOthers(t *testing.T) {
	at := netip.MustParseAddrPort("192.0.2.1:80")
	for _, tt := range []struct {
		name        string
		mode, ofDir os.FileMode
		want        string // DIR is that of the program
	}{
		{"nobody else", 0o755, 0o755, ""},
		{"in a sticky directory", 0o755, 0o777 | os.ModeSticky, ""},
		{"all", 0o777, 0o755, "DIR/check can be changed by everybody"},
		{"all, its directory", 0o755, 0o777, "DIR can be changed by everybody"},
	} {
		path := aProgram(t, "exit 0", tt.mode, tt.ofDir)
		if tt.want != "" {
			tt.want = fmt.Sprintf("not asked: %s: it does not run as user %d", strings.ReplaceAll(tt.want, "DIR", filepath.Dir(path)), os.Geteuid())
		}
		want(t, tt.name, asked(t, at, source.HealthCheck{Type: source.CheckExec, Command: []string{path}}), tt.want)
	}
}

// TestExecOfBarredFileFails has a check whose program must not run for what its file is.
func TestExecOfBarredFileFails(t *testing.T) {
	check := shell("exit 3")
	check.Barred = "all can write its file"
	want(t, "barred", asked(t, netip.MustParseAddrPort("192.0.2.1:80"), check), "not asked: all can write its file")
}

// says asks a program that runs as a user, and returns what the lines of its status with these names say.
func says(t *testing.T, as, names string) string {
	t.Helper()
	check := shell("grep -E '^(" + names + "):' /proc/self/status | tr -s '\\n\\t ' ' '; exit 1")
	check.Timeout = long
	ctx, cancel := context.WithTimeout(t.Context(), check.Timeout)
	defer cancel()
	return words(ask(ctx, Question{At: netip.MustParseAddrPort("192.0.2.1:80")}, &check, expressions{}.use(&check), as))
}

const (
	noCapabilities = "exit code 1: CapInh: 0000000000000000 CapPrm: 0000000000000000 CapEff: 0000000000000000 CapAmb: 0000000000000000 NoNewPrivs: 1"
	noBounding     = "exit code 1: CapBnd: 0000000000000000"
)

// TestExecHasNoCapabilities reads what the kernel says of a program.
func TestExecHasNoCapabilities(t *testing.T) {
	want(t, "capabilities", says(t, "", "CapInh|CapPrm|CapEff|CapAmb|NoNewPrivs"), noCapabilities)
	uid, gid := os.Geteuid(), os.Getegid()
	want(t, "user", says(t, "", "Uid|Gid"), fmt.Sprintf("exit code 1: Uid: %[1]d %[1]d %[1]d %[1]d Gid: %[2]d %[2]d %[2]d %[2]d", uid, gid))
	want(t, "no such user", says(t, "no-such", "Uid"), "not asked: running it as user no-such: there is no such user")
	want(t, "root", says(t, "root", "Uid"), "not asked: running it as user root: it is root")
}
