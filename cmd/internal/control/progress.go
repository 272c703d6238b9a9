package control

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
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

// A patientConn reads for as long as something comes in, however long all of it takes: it gives up a daemon that is
// stopped, or silent for too long.
type patientConn struct {
	net.Conn
	pid     int           // of who answers; 0: not known
	silence time.Duration // what is too long
}

// Read implements net.Conn.
func (c patientConn) Read(b []byte) (int, error) {
	for began := time.Now(); ; {
		if err := c.SetReadDeadline(time.Now().Add(stoppedAfter / 4)); err != nil {
			return 0, err
		}
		n, err := c.Conn.Read(b)
		switch silent := time.Since(began); {
		case n > 0 || !errors.Is(err, os.ErrDeadlineExceeded):
			return n, err
		case silent >= stoppedAfter && isStopped(c.pid):
			return 0, stoppedError(c.pid)
		case silent >= c.silence:
			return 0, errSilent
		}
	}
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

// endedBy returns why no more of an answer is to be expected, where that is known, or else err.
func endedBy(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); errors.Is(cause, ErrUnreachable) {
		return cause
	}
	if stopped, is := errors.AsType[stoppedError](err); is {
		return stopped
	}
	if errors.Is(err, errSilent) {
		return errSilent
	}
	return err
}
