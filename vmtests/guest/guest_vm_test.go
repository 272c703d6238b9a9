//go:build vm

package guest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/internal/pace"
)

// envVictim makes this test binary boot a guest, say its process id, and wait to be killed.
const envVictim = "SVCPROXY_VM_TEST_VICTIM"

func TestMain(m *testing.M) {
	if os.Getenv(envVictim) != "" {
		beVictim()
	}
	goleak.VerifyTestMain(m)
}

func beVictim() {
	g, err := Boot(context.Background(), Config{Name: "victim"})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(g.machine.pid)
	select {}
}

func TestRun(t *testing.T) {
	tests := []struct {
		name   string
		args   []string
		code   int
		output string
	}{
		{"exit code and output", []string{"sh", "-c", "cat hello; id -u >&2; exit 3"}, 3, "hello\n0\n"},
		{"signal", []string{"sh", "-c", "kill -KILL $$"}, 128 + 9, ""},
		{"IPVS", []string{"sh", "-c", "ipvsadm -A -t 10.0.0.1:80 -s wrr && ipvsadm -S -n && ip link add svcproxy0 type dummy"}, 0, "-A -t 10.0.0.1:80 -s wrr\n"},
		{"orphans are collected", []string{"sh", "-c", "(sleep 0.1 &); sleep 1; ps -eo stat | grep -c Z"}, 1, "0\n"},
	}
	cfg := Config{Name: "run", Files: []File{{Path: Home + "/hello", Mode: 0o644, Data: []byte("hello\n")}}}
	g := boot(t, t.Context(), cfg)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var out bytes.Buffer
			code, err := g.Run(t.Context(), Command{Args: tt.args, Dir: Home}, &out)
			if err != nil || code != tt.code || out.String() != tt.output {
				t.Errorf("code %d, output %q, error %v; want code %d, output %q", code, out.String(), err, tt.code, tt.output)
			}
		})
	}
}

func boot(t *testing.T, ctx context.Context, cfg Config) *Guest {
	t.Helper()
	g, err := Boot(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.Close() })
	return g
}

// Errors tell apart that the time of a guest was over, that it crashed, and that the time of a program was over.
func TestEnds(t *testing.T) {
	t.Run("the guest's time is over", func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		g := boot(t, ctx, Config{Name: "timed-out"})
		over := fmt.Errorf("time is over: %w", context.DeadlineExceeded)
		time.AfterFunc(time.Second, func() { cancel(over) })
		_, err := g.Output(t.Context(), "sleep", "600")
		if !errors.Is(err, over) || errors.Is(err, ErrDied) {
			t.Errorf("error %v", err)
		}
		gone(t, g.machine.pid)
	})
	t.Run("the kernel crashes, the program's time is over before", func(t *testing.T) {
		g := boot(t, t.Context(), Config{Name: "crash"})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := g.Output(ctx, "sleep", "600"); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrDied) {
			t.Errorf("error %v", err)
		}
		_, err := g.Output(t.Context(), "sh", "-c", "echo c >/proc/sysrq-trigger; sleep 600")
		if !errors.Is(err, ErrDied) || !strings.Contains(err.Error(), "sysrq triggered crash") {
			t.Errorf("error %v", err)
		}
		gone(t, g.machine.pid)
	})
}

// A guest that dies is booted once more.
func TestRunTriesOnceMore(t *testing.T) {
	var out bytes.Buffer
	var tried tries
	_, err := Run(t.Context(), Config{Name: "twice", Again: tried.add}, Command{Args: []string{"sh", "-c", "echo attempt; sleep 0.2; echo b >/proc/sysrq-trigger; sleep 60"}}, &out)
	if n := strings.Count(out.String(), "attempt\n"); !errors.Is(err, ErrDied) || n != 2 || len(tried) != 1 {
		t.Errorf("%d attempts, want 2; told of %v; error %v", n, tried, err)
	}
}

// A guest that does not answer is booted once more.
func TestBootTriesOnceMore(t *testing.T) {
	var tried tries
	_, err := Boot(t.Context(), Config{Name: "silent", Setup: "sleep 600", Again: tried.add, patience: 2 * time.Second})
	if !errors.Is(err, ErrDied) || !errors.Is(err, errSilent) || len(tried) != 1 {
		t.Errorf("told of %v; error %v", tried, err)
	}
}

// tries are why guests were booted again.
type tries []error

func (t *tries) add(err error) { *t = append(*t, err) }

// A guest ends when the process that booted it is killed.
func TestGuestDiesWithItsProcess(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), envVictim+"=1")
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Fscan(stdout, &pid); err != nil {
		t.Error(err)
	}
	if err := errors.Join(unix.Kill(pid, 0), cmd.Process.Kill()); err != nil {
		t.Error(err)
	}
	cmd.Wait()
	gone(t, pid)
}

// gone checks that a process ends.
func gone(t *testing.T, pid int) {
	t.Helper()
	if !pace.Within(10*time.Second, func() bool { return errors.Is(unix.Kill(pid, 0), unix.ESRCH) }) {
		t.Errorf("process %d lives on", pid)
	}
}
