// Package program runs programs that settings and service files name, such as health checks. A program runs without a shell,
// in its own process group, and without capabilities.
//
// A program that does not end in time is killed, together with its process group. If no signal can end it, because it waits
// for a disk that does not answer, a goroutine keeps waiting for it. A Group bounds the number of such programs.
//
//	program.go  runs a program until it has ended
//	start.go    starts it, so that a disk that does not answer does not block the daemon
//	confine.go  drops the rights that it must not have
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
	maxOutput = 1 << 10                // bytes of output that are kept; more is read and discarded
	pipeWait  = 100 * time.Millisecond // how long its output is read after it and its process group have ended

	// killWait is how long to wait for a program after it was killed. It is shorter than the delay after which a health check
	// concludes that the machine was suspended.
	killWait = 200 * time.Millisecond
)

// A Command is a program to run.
type Command struct {
	Args []string // the first is the path of the program
	User string   // empty: the user of this process, and only if no other user can change the program
	Env  []string // as in os.Environ; PATH and LANG are added
}

// A Group bounds the programs of one purpose, so that they do not delay programs of another purpose.
type Group struct {
	running, unbegun atomic.Int32
	most             int // limit of running
	mostUnbegun      int // limit of unbegun
}

// NewGroup returns a Group that refuses to run a program while most programs have not ended, including killed programs that
// have not exited. It also refuses while mostUnbegun programs could not start in time because they wait for a disk. Each of
// these takes about 10 MB.
func NewGroup(most, mostUnbegun int) *Group { return &Group{most: most, mostUnbegun: mostUnbegun} }

// A NotRunError says why this host could not run a program.
type NotRunError struct{ Err error }

func (e *NotRunError) Error() string { return reason(e.Err) }
func (e *NotRunError) Unwrap() error { return e.Err }

var (
	// ErrTimedOut says that a program did not end in time.
	ErrTimedOut = errors.New("the program timed out")

	// ErrUnbegun says that the program, or earlier ones, did not start in time.
	ErrUnbegun = errors.New("its program cannot be read in time: a disk that does not answer, or a busy host")

	// ErrUnended says that too many programs have not ended.
	ErrUnended = errors.New("too many programs do not end though they were killed")
)

// path and lang are in the environment of every program.
const (
	path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	lang = "LANG=C.UTF-8"
)

// Run runs a program. It returns when the program has ended, or soon after ctx ends. The error is a *NotRunError if the program
// was not started, or ErrTimedOut; otherwise it has the exit code and the first line of the output, unescaped.
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

// ended calls run and returns its result, or ErrTimedOut some time after ctx ends. A program that waits for a disk that does not
// answer cannot be killed, and may not even start. Its goroutine then continues to wait.
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

// run runs a program until it has ended. Before it kills the program, it sets late if the program has not started by then.
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
		return &NotRunError{failed} // for example, the program does not exist
	}
	return outcome(ctx, err, &out)
}

// waitGroup waits until a program or ctx has ended, and kills the rest of its process group. If ctx ends, it calls before first.
// The program is not reaped until then, so its ID, which is also the ID of the group, cannot be reused.
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

func killGroup(pid int) { _ = unix.Kill(-pid, unix.SIGKILL) } // fails if the group has ended

// outcome returns the error of a program that has ended. It is not a failure if a process that the program started keeps its
// output open.
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

// output keeps the beginning of the output of a program.
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
