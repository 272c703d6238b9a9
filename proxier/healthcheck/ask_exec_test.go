package healthcheck

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/source"
)

func TestExec(t *testing.T) {
	at := netip.MustParseAddrPort("192.0.2.1:8080")
	t.Setenv("SECRET", "x")
	for _, tt := range []struct{ name, script, want string }{
		{"good", "exit 0", ""},
		{"bad", "exit 3", "exit code 3"},
		{"its words", "echo 'no \033[31mreplica'; echo more >&2; exit 1", `exit code 1: no \x1b[31mreplica`},
		{"environment", `test "$SVCPROXY_ADDRESS $SVCPROXY_PORT $SVCPROXY_SERVICE $SECRET" = "192.0.2.1 8080 prod/web "`, ""},
		{"no input", "read x && exit 1; exit 0", ""},
		{"killed", "kill -TERM $$", "signal: terminated"},
		{"chatty", "yes | head -c 1000000; exit 1", "exit code 1: y"},
	} {
		want(t, tt.name, asked(t, at, shell(tt.script)), tt.want)
	}
	notOne := filepath.Join(t.TempDir(), "not one")
	fatal.If(t, os.WriteFile(notOne, []byte("exit 1"), 0o600))
	for name, why := range map[string]string{"/nonexistent": "no such file or directory", notOne: "permission denied"} {
		want(t, name, asked(t, at, source.HealthCheck{Type: source.CheckExec, Command: []string{name}}), "not asked: "+why)
	}
	long := asked(t, at, shell("printf '%01000d' 7 | tr 0 '\\033'; exit 1"))
	if len(long) > maxError || !strings.HasSuffix(long, "...") {
		t.Errorf("a long text is %d bytes: %q", len(long), long)
	}
}

func shell(script string) source.HealthCheck {
	return source.HealthCheck{Type: source.CheckExec, Command: []string{"/bin/sh", "-c", script}}
}

// TestExecKillsChildren has a program whose child outlives it, or would.
func TestExecKillsChildren(t *testing.T) {
	at := netip.MustParseAddrPort("192.0.2.1:8080")
	for _, tt := range []struct{ name, end, want string }{
		{"at the timeout", "wait", "the program timed out"},
		{"when it has ended", "exit 0", ""},
	} {
		file := filepath.Join(t.TempDir(), "pid")
		check := shell("sleep 1000 & echo $! >" + file + ".new && mv " + file + ".new " + file + "; " + tt.end)
		check.Timeout = pace.Scale(500 * time.Millisecond)
		want(t, tt.name, asked(t, at, check), tt.want)
		text, err := os.ReadFile(file)
		fatal.If(t, err)
		child, err := strconv.Atoi(strings.TrimSpace(string(text)))
		fatal.If(t, err)
		if !gone(child) {
			t.Errorf("%s: the child %d is still there", tt.name, child)
			syscall.Kill(child, syscall.SIGKILL)
		}
	}
}

// gone waits until a process has ended. One that nobody has reaped has.
func gone(pid int) bool {
	return pace.Within(5*time.Second, func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return err != nil || strings.Contains(string(stat), ") Z ")
	})
}

// TestExecEndsDespiteAnOpenPipe has a child that left the process group and keeps the output open.
func TestExecEndsDespiteAnOpenPipe(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pid")
	check := shell("setsid sh -c 'echo $$ >" + file + "; exec sleep 1000' & while ! test -s " + file + "; do sleep 0.01; done; exit 0")
	start := time.Now()
	want(t, "pipe", asked(t, netip.MustParseAddrPort("192.0.2.1:80"), check), "")
	if took := time.Since(start); took >= check.Timeout && took >= long {
		t.Errorf("the pipe held the probe for %v", took)
	}
	text, err := os.ReadFile(file)
	fatal.If(t, err)
	child, _ := strconv.Atoi(strings.TrimSpace(string(text)))
	if child <= 0 {
		t.Fatalf("child is %q", text)
	}
	syscall.Kill(child, syscall.SIGKILL)
}
