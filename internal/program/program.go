// Package program runs programs that settings and service files name, as those of health checks: without a shell, in a
// process group of their own, and with no capability.
//
// A program that does not end in time is killed with all of its process group. One that no signal ends, because it waits
// for a disk that is gone, is left to a goroutine; of these a Group has a bounded number.
//
//	program.go  what runs one until it has ended
//	start.go    how one begins: a disk that does not answer holds up nothing else
//	confine.go  the rights that it has
package program

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Bounds of a program.
const (
	maxOutput = 1 << 10                // bytes of what it writes that are kept; more is read and dropped
	pipeWait  = 100 * time.Millisecond // how long its output is read after it and its process group have ended

	// killWait is how long it is waited for when it was killed; less than what a health check takes for a machine that stood
	// still.
	killWait = 200 * time.Millisecond
)

// A Command is a program that is to run.
type Command struct {
	Args []string // the first is the path of the program
	User string   // as whom it runs; empty: as the user of this process, and only if no other user can change the program
	Env  []string // as os.Environ has it; it has PATH and LANG besides
}

// A Group bounds the programs of one purpose. Programs of another purpose never wait for them.
type Group struct {
	running, unbegun atomic.Int32
	most             int // that have begun and not ended, those included that were killed and still do not
	mostUnbegun      int
}

// NewGroup returns a Group of at most so many programs that have not ended. mostUnbegun are those that were to begin and
// did not in time, because they wait for a disk; each takes some 10 MB, and one more would learn nothing else.
func NewGroup(most, mostUnbegun int) *Group { return &Group{most: most, mostUnbegun: mostUnbegun} }

// A NotRunError says why this host could not run a program.
type NotRunError struct{ Err error }

func (e *NotRunError) Error() string { return reason(e.Err) }
func (e *NotRunError) Unwrap() error { return e.Err }

var (
	// ErrTimedOut says that a program did not end in time.
	ErrTimedOut = errors.New("the program timed out")

	// ErrUnbegun says that programs do not begin in time.
	ErrUnbegun = errors.New("its program cannot be read in time: a disk that does not answer, or a busy host")

	// ErrUnended says that no more programs can run.
	ErrUnended = errors.New("too many programs do not end though they were killed")
)

// path and lang are in the environment of all programs.
const (
	path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	lang = "LANG=C.UTF-8"
)

// Run runs a program until it has ended, or soon after the end of ctx. The error is a *NotRunError where it did not begin,
// ErrTimedOut, or says with which code it ended and the first line that it wrote, as it wrote it.
func (g *Group) Run(ctx context.Context, c Command) error {
	if int(g.unbegun.Load()) >= g.mostUnbegun {
		return &NotRunError{ErrUnbegun}
	}
	var late atomic.Bool
	err := g.ended(ctx, func() error { return g.run(ctx, c, &late) })
	if late.Load() {
		return &NotRunError{ErrUnbegun}
	}
	return err
}

// ended returns what run does, or ErrTimedOut: a program that waits for a disk that is gone ends by no signal, and may not
// even begin. It is left to its goroutine then.
func (g *Group) ended(ctx context.Context, run func() error) error {
	if int(g.running.Load()) >= g.most {
		return &NotRunError{ErrUnended}
	}
	g.running.Add(1)
	done := make(chan error, 1)
	go func() {
		err := run()
		g.running.Add(-1)
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
		return ErrTimedOut
	}
}

// run runs a program until it has ended. late is set before it is killed, if it had not begun by then.
func (g *Group) run(ctx context.Context, c Command, late *atomic.Bool) error {
	var out output
	cmd := exec.Command(self)
	cmd.Args = append([]string{starter, c.User}, c.Args...)
	cmd.Dir, cmd.Env = "/", append([]string{path, lang}, c.Env...)
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = pipeWait
	b, err := g.begin(cmd)
	if err != nil {
		return &NotRunError{err}
	}
	defer b.close()
	waitGroup(ctx, cmd.Process.Pid, func() { late.Store(b.isLate()) })
	err = cmd.Wait()
	if _, failed := b.poll(); failed != nil {
		return &NotRunError{failed} // this host has no such program, say
	}
	return outcome(ctx, err, &out)
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

// outcome says what the end of a program means. That something which it started kept its output open is no failure.
func outcome(ctx context.Context, err error, out *output) error {
	var exit *exec.ExitError
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded) && err != nil && !errors.Is(err, exec.ErrWaitDelay):
		return ErrTimedOut
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
