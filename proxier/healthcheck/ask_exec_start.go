package healthcheck

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// The program of a check can be on a disk that is gone. Go starts a child as vfork(2) does, and the garbage collector,
// for which all goroutines wait, waits until the child has begun its program (syscall.forkExec): the daemon would stand
// still with the disk. So it starts itself, which is in memory, and that process becomes the program: some 10 ms of one
// processor more.
const (
	self    = "/proc/self/exe"
	starter = "svcproxy-check" // its name, by which a process knows what it is for

	// startFailure is the descriptor to which it writes why it cannot: the first behind standard error.
	startFailure = 3
	maxFailure   = 1 << 10 // bytes of the reason that are read; it may name a longer path
)

// init comes before all that another process of this program does.
func init() {
	if os.Args[0] == starter && len(os.Args) > 2 {
		become(os.Args[1], os.Args[2:])
	}
}

// become makes this process the program of a command, with the rights of a user (see confine), or ends it.
func become(user string, command []string) {
	unix.CloseOnExec(startFailure)
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("0"), 0) // svcproxy may be spared where memory is short: its programs are not
	why := ""
	if err := confine(user, command[0]); err != nil {
		why = err.Error()
	} else {
		why = plain(unix.Exec(command[0], command, os.Environ()))
	}
	fmt.Fprint(os.NewFile(startFailure, "failure"), why)
	os.Exit(1)
}

// A beginning is how far a process has got that is to become a program.
type beginning struct {
	over chan struct{} // closed when it is the program, or has ended
	why  string        // after that: it cannot become it; empty: it did
}

// begin starts one.
func begin(cmd *exec.Cmd) (*beginning, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer w.Close()
	cmd.ExtraFiles = []*os.File{w}
	if err := cmd.Start(); err != nil {
		r.Close()
		return nil, err
	}
	b := &beginning{over: make(chan struct{})}
	go func() {
		defer close(b.over)
		defer r.Close()
		text, _ := io.ReadAll(io.LimitReader(r, maxFailure))
		b.why = string(text)
	}()
	return b, nil
}

// unbegun counts processes that were to become a program and did not in time, until they end: they wait for a disk.
var unbegun atomic.Int32

// maxUnbegun is how many there may be. Each takes some 10 MB, and one more would learn nothing else.
const maxUnbegun = 8

var errUnbegun = errors.New("its program cannot be read in time: a disk that does not answer, or a busy host")

// isLate reports whether the process has not become the program.
func (b *beginning) isLate() bool {
	select {
	case <-b.over:
		return false
	default:
		return true
	}
}
