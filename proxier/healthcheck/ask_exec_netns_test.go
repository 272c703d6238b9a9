//go:build netns

package healthcheck

import (
	"context"
	"net/netip"
	"os"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/internal/disktest"
	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/internal/program"
	"svcproxy.dev/svcproxy/source"
)

// TestExecOnDeadDisk has a program on a file system that does not answer: that holds up nothing but its check.
func TestExecOnDeadDisk(t *testing.T) {
	if !disktest.Isolated(t) {
		return
	}
	dir := t.TempDir()
	answer := disktest.Dead(t, dir)
	check := source.HealthCheck{Type: source.CheckExec, Command: []string{filepath.Join(dir, "check")}, Timeout: 100 * time.Millisecond}
	want(t, "of a dead disk", asked(t, netip.MustParseAddrPort("192.0.2.1:80"), check), "not asked: "+program.ErrUnbegun.Error())
	runtime.GC()
	want(t, "beside it", asked(t, netip.MustParseAddrPort("192.0.2.1:80"), shell("exit 3")), "exit code 3")
	answer()
}

// TestExecAsUser has a program run as a user: with the groups of that one, and no capability, not even one that it could get.
func TestExecAsUser(t *testing.T) {
	nobody, err := user.Lookup("nobody")
	fatal.If(t, err)
	const four = "ID ID ID ID"
	wanted := "exit code 1: Uid: " + strings.ReplaceAll(four, "ID", nobody.Uid) + " Gid: " + strings.ReplaceAll(four, "ID", nobody.Gid) + " Groups:"
	want(t, "user", says(t, "nobody", "Uid|Gid|Groups"), wanted)
	for _, as := range []string{"", "nobody"} {
		want(t, "as "+as, says(t, as, "CapInh|CapPrm|CapEff|CapAmb|NoNewPrivs"), noCapabilities)
		want(t, "as "+as, says(t, as, "CapBnd"), noBounding)
	}
}

// TestExecKillsAsUser has a program of another user that goes on until it is killed.
func TestExecKillsAsUser(t *testing.T) {
	const length = "7391" // seconds, which no other test sleeps
	check := shell("exec sleep " + length)
	ctx, cancel := context.WithTimeout(t.Context(), pace.Scale(500*time.Millisecond))
	defer cancel()
	want(t, "a program that goes on", words(ask(ctx, Question{At: netip.MustParseAddrPort("192.0.2.1:80")}, &check, expressions{}.use(&check), "nobody")), "the program timed out")
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	fatal.If(t, err)
	for _, file := range files {
		text, _ := os.ReadFile(file)
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file))); err == nil && string(text) == "sleep\x00"+length+"\x00" && !gone(pid) {
			t.Errorf("process %d is still there", pid)
			syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

// TestExecOfOtherOwner has a program that another user owns: root does not run it.
func TestExecOfOtherOwner(t *testing.T) {
	path := aProgram(t, "exit 0", 0o755, 0o755)
	fatal.If(t, os.Chown(path, 65534, 0))
	at := netip.MustParseAddrPort("192.0.2.1:80")
	want(t, "as root", asked(t, at, source.HealthCheck{Type: source.CheckExec, Command: []string{path}}),
		"not asked: "+path+" can be changed by its owner, user 65534, who is not root: it does not run as user 0")
}
