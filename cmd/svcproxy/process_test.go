package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/internal/pace"
)

// asProgram in the environment makes the tests' binary the program.
const asProgram = "SVCPROXY_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	os.Exit(m.Run())
}

// command prepares the program as a process of its own, with directories below dir.
func command(t *testing.T, dir string, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	fatal.If(t, err)
	args = append(args, "--config-dir", filepath.Join(dir, "etc"), "--state-dir", filepath.Join(dir, "lib"), "--run-dir", filepath.Join(dir, "run"))
	cmd := exec.CommandContext(t.Context(), self, args...)
	cmd.Env = append(os.Environ(), asProgram+"=1")
	return cmd
}

// process runs the program to its end.
func process(t *testing.T, dir string, args ...string) (code int, stderr string) {
	t.Helper()
	var text strings.Builder
	cmd := command(t, dir, args...)
	cmd.Stderr = &text
	var failed *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &failed) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), strings.ReplaceAll(text.String(), dir+"/", "")
}

// A wait for standard input can be interrupted, and ends as any program does.
func TestCheckIsInterrupted(t *testing.T) {
	cmd := command(t, etc(t, nil), "check", "-")
	stdin, err := cmd.StdinPipe()
	fatal.If(t, err)
	defer stdin.Close()
	fatal.If(t, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	deadline := time.After(pace.Scale(time.Minute))
	for {
		select {
		case <-ended:
			if st := cmd.ProcessState.Sys().(syscall.WaitStatus); !st.Signaled() || st.Signal() != syscall.SIGINT {
				t.Errorf("ended by %v", cmd.ProcessState)
			}
			return
		case <-deadline:
			_ = cmd.Process.Kill()
			t.Fatal("it still waits a minute after it was interrupted")
		case <-time.After(50 * time.Millisecond): // it may not have begun
			_ = cmd.Process.Signal(syscall.SIGINT)
		}
	}
}

// A pipe without a writer does not hold up its reader.
func TestPipeWithoutAWriterIsNotAwaited(t *testing.T) {
	dir := etc(t, map[string]string{})
	for _, path := range []string{"etc/svcproxy.toml", "etc/a.toml", "b.toml"} {
		fatal.If(t, syscall.Mkfifo(filepath.Join(dir, path), 0o644))
	}
	t.Chdir(dir)
	const settings, file = "etc/svcproxy.toml: cannot be read: it is not a regular file\n", "etc/a.toml: cannot be read: it is not a regular file\n"
	for _, tt := range []struct {
		args   []string
		code   int
		stderr string
	}{
		{[]string{"check"}, 3, settings + file},
		{[]string{"check", "etc/a.toml"}, 3, settings + file},
		{[]string{"check", "etc/svcproxy.toml"}, 3, settings},
		{[]string{"check", "b.toml"}, 3, "b.toml: cannot be read: it is not a regular file\n"},
		{[]string{"config"}, 3, "reading settings: open etc/svcproxy.toml: it is not a regular file\n"},
	} {
		if code, _, stderr := call(t, dir, tt.args...); code != tt.code || stderr != tt.stderr {
			t.Errorf("%q: exit %d: %s\nwant %d: %s", tt.args, code, stderr, tt.code, tt.stderr)
		}
	}
}
