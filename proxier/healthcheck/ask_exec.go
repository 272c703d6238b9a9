package healthcheck

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/source"
)

// Bounds of a program.
const (
	programs  = 64                     // that run at once
	maxOutput = 1 << 10                // bytes of what it writes that are kept; more is read and dropped
	pipeWait  = 100 * time.Millisecond // how long its output is read after it and its process group have ended
	killWait  = 200 * time.Millisecond // how long it is waited for when it was killed; less than what entry.stopped takes for a machine that stood still

	// unreaped is how many there may be that have not ended, with those that were killed
	// and still do not: they wait for a disk that is gone, say.
	unreaped = 2 * programs
)

// running is how many programs have begun and not ended, in all of this process.
var running atomic.Int32

var errUnreaped = fmt.Errorf("%d programs of checks do not end though they were killed", unreaped-programs)

// askProgram runs the program of a check without a shell, in a process group of its own, with the rights that confine
// leaves it, as a user; empty: as the user of this process.
func askProgram(ctx context.Context, q Question, check *source.HealthCheck, user string) error {
	switch {
	case len(check.Command) == 0:
		return errors.New("there is no command")
	case check.Barred != "":
		return &ownError{errors.New(check.Barred)}
	case unbegun.Load() >= maxUnbegun:
		return &ownError{errUnbegun}
	}
	var late atomic.Bool
	err := ended(ctx, func() error { return run(ctx, q, check.Command, user, &late) })
	if late.Load() {
		return &ownError{errUnbegun}
	}
	return err
}

// ended returns what run does, or that it timed out: a program that waits for a disk that is
// gone ends by no signal, and may not even begin. It is left to its goroutine then.
func ended(ctx context.Context, run func() error) error {
	if running.Load() >= unreaped {
		return &ownError{errUnreaped}
	}
	running.Add(1)
	done := make(chan error, 1)
	go func() {
		err := run()
		running.Add(-1)
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	timer := time.NewTimer(killWait)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-timer.C:
		return timeoutError("the program")
	}
}

// run runs a program until it has ended. late is set before it is killed, if it had not begun by then.
func run(ctx context.Context, q Question, command []string, user string, late *atomic.Bool) error {
	var out output
	cmd := exec.Command(self)
	cmd.Args = append([]string{starter, user}, command...)
	cmd.Dir, cmd.Env = "/", environment(q)
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = pipeWait
	b, err := begin(cmd)
	if err != nil {
		return &ownError{err}
	}
	defer b.close()
	waitGroup(ctx, cmd.Process.Pid, func() { late.Store(b.isLate()) })
	err = cmd.Wait()
	if _, failed := b.poll(); failed != nil {
		return &ownError{failed} // this host has no such program, say: the endpoint was not asked
	}
	return outcomeOfRun(ctx, err, &out)
}

func environment(q Question) []string {
	return []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"LANG=C.UTF-8",
		"SVCPROXY_ADDRESS=" + q.At.Addr().String(),
		"SVCPROXY_PORT=" + strconv.Itoa(int(q.At.Port())),
		"SVCPROXY_SERVICE=" + q.Service.String(),
	}
}

// waitGroup waits until a program has ended, or ctx, and kills what is left of its
// process group; at the end of ctx it calls before first. The program is not reaped before that: its id, which is that of the
// group, cannot be another's.
func waitGroup(ctx context.Context, pid int, before func()) {
	killed := make(chan struct{})
	stop := context.AfterFunc(ctx, func() { before(); killGroup(pid); close(killed) })
	for errors.Is(unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil), unix.EINTR) {
	}
	if !stop() {
		<-killed
	}
	killGroup(pid)
}

func killGroup(pid int) { _ = unix.Kill(-pid, unix.SIGKILL) } // of a group that is gone nothing is left

// outcomeOfRun says what the end of a program means. That something which it started kept its output open is no failure.
func outcomeOfRun(ctx context.Context, err error, out *output) error {
	var exit *exec.ExitError
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded) && err != nil && !errors.Is(err, exec.ErrWaitDelay):
		return timeoutError("the program")
	case errors.Is(err, exec.ErrWaitDelay):
		return nil
	case errors.As(err, &exit) && exit.Exited():
		return fmt.Errorf("exit code %d%s", exit.ExitCode(), out)
	case errors.As(err, &exit):
		return fmt.Errorf("%s%s", exit, out)
	}
	return err
}

// output keeps the beginning of what a program writes.
type output []byte

func (o *output) Write(b []byte) (int, error) {
	*o = append(*o, b[:min(len(b), maxOutput-len(*o))]...)
	return len(b), nil
}

// String returns ": " and the first line of the output, or nothing.
func (o *output) String() string {
	line, _, _ := strings.Cut(strings.TrimSpace(string(*o)), "\n")
	if line == "" {
		return ""
	}
	return ": " + line
}
