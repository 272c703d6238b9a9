package control

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"time"
)

var (
	// stoppedAfter is how long a daemon may say nothing before it is looked at
	// whether it is stopped: who asks is to know within 2 s.
	stoppedAfter = time.Second

	// silentAfter is how long a daemon may say nothing. Status of 1,000,000 endpoints takes
	// some seconds before its first byte.
	silentAfter = 30 * time.Second
)

// A stoppedError says that the process which has the socket is stopped, as by SIGSTOP.
type stoppedError int

func (pid stoppedError) Error() string {
	return fmt.Sprintf("svcproxy (pid %d) does not answer; it is stopped (kill -CONT %d has it go on)", int(pid), int(pid))
}

// Unwrap returns ErrUnreachable.
func (stoppedError) Unwrap() error { return ErrUnreachable }

// errSilent is why a question is given up whose answer does not come, or not on.
var errSilent = fmt.Errorf("%w: it has said nothing for too long", ErrUnreachable)

// progress watches an answer come in. The time that all of it takes is not limited.
type progress struct {
	last atomic.Int64 // when something was last heard, in ns since 1970
	pid  atomic.Int64 // of who answers; 0: not known

	silence time.Duration // what is too long
}

// watch returns a context that ends when the daemon is stopped, or silent for too long,
// with that as its cause. stop ends the watching.
func (p *progress) watch(ctx context.Context) (_ context.Context, stop func()) {
	p.heard()
	ctx, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(stoppedAfter / 4)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if err := p.trouble(); err != nil {
				cancel(err)
				return
			}
		}
	}()
	return ctx, func() { cancel(nil); <-done }
}

func (p *progress) heard() { p.last.Store(time.Now().UnixNano()) }

// trouble returns why no more is to be expected; nil: it is.
func (p *progress) trouble() error {
	silent := time.Duration(time.Now().UnixNano() - p.last.Load())
	pid := int(p.pid.Load())
	switch {
	case silent >= stoppedAfter && isStopped(pid):
		return stoppedError(pid)
	case silent >= p.silence:
		return errSilent
	}
	return nil
}

// isStopped reports whether a process is stopped by a signal or a debugger.
func isStopped(pid int) bool {
	if pid <= 0 {
		return false
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	state := string(stat[bytes.LastIndexByte(stat, ')')+1:]) // the name in parentheses may hold any, proc_pid_stat(5)
	return strings.HasPrefix(state, " T") || strings.HasPrefix(state, " t")
}

type progressKey struct{}

// A heardConn tells a progress of what is read.
type heardConn struct {
	net.Conn
	*progress
}

// Read implements net.Conn.
func (c heardConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.heard()
	}
	return n, err
}

// heardBy returns conn such that the progress in ctx, if there is one, hears of what comes in.
func heardBy(ctx context.Context, conn net.Conn) net.Conn {
	p, ok := ctx.Value(progressKey{}).(*progress)
	if !ok {
		return conn
	}
	if socket, ok := conn.(*net.UnixConn); ok {
		if cred, err := credentials(socket); err == nil {
			p.pid.Store(int64(cred.Pid))
		}
	}
	return heardConn{conn, p}
}

// endedBy returns why ctx ended where that is that no more is to be expected, or else err.
func endedBy(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); errors.Is(cause, ErrUnreachable) {
		return cause
	}
	return err
}
