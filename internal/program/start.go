package program

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"

	"golang.org/x/sys/unix"
)

// A program can be on a disk that does not answer. Go starts a child as vfork(2) does, and until the child has executed its
// program the garbage collector cannot run, for which all goroutines wait (syscall.forkExec). The disk would block the whole
// daemon. So the daemon starts its own executable, which is in memory, and that process executes the program. This costs
// about 10 ms of processor time.
const (
	self    = "/proc/self/exe"
	starter = "svcproxy-program" // argv[0] of a process that must execute a program

	// startFailure is the descriptor to which that process writes why it cannot: the first one after standard error.
	startFailure = 3
	maxFailure   = 1 << 10 // bytes of the reason that are read; a reason with a long path is cut
)

// init runs before main, so that a process with this name does nothing else.
func init() {
	if os.Args[0] == starter && len(os.Args) > 2 {
		become(os.Args[1], os.Args[2:])
	}
}

// become executes a command in this process, with the rights of a user (see confine). If that fails, it ends the process.
func become(user string, command []string) {
	unix.CloseOnExec(startFailure)
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("0"), 0) // svcproxy may be protected from the OOM killer; its programs are not
	why := ""
	if err := confine(user, command[0]); err != nil {
		why = err.Error()
	} else {
		why = reason(unix.Exec(command[0], command, os.Environ()))
	}
	fmt.Fprint(os.NewFile(startFailure, "failure"), why)
	os.Exit(1)
}

// A beginning tracks a process until it has executed its program.
type beginning struct {
	group *Group
	r     *os.File // reaches its end when the process executes the program

	mu     sync.Mutex
	over   bool
	failed error
	late   bool
}

// begin starts cmd, and tracks it.
func (g *Group) begin(cmd *exec.Cmd) (*beginning, error) {
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
	return &beginning{group: g, r: r}, nil
}

// poll reports whether the start is over, because the process has executed the program or has ended. failed says why it could
// not execute the program. It does not block.
func (b *beginning) poll() (over bool, failed error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.over {
		return true, b.failed
	}
	text, err := readNow(b.r)
	if errors.Is(err, unix.EAGAIN) {
		return false, nil
	}
	b.over = true
	if len(text) > 0 {
		b.failed = errors.New(string(text))
	}
	return true, b.failed
}

// isLate reports whether the process has not executed its program yet. If so, it counts the process in unbegun until close.
func (b *beginning) isLate() bool {
	if over, _ := b.poll(); over {
		return false
	}
	b.late = true
	b.group.unbegun.Add(1)
	return true
}

// close must be called when the process has ended.
func (b *beginning) close() {
	if b.late {
		b.group.unbegun.Add(-1)
	}
	b.r.Close()
}

// readNow reads without blocking. It returns EAGAIN if there is nothing to read yet.
func readNow(r *os.File) (text []byte, err error) {
	conn, err := r.SyscallConn()
	if err != nil {
		return nil, err
	}
	text = make([]byte, maxFailure)
	n := 0
	err2 := conn.Read(func(fd uintptr) bool {
		n, err = unix.Read(int(fd), text)
		return true
	})
	return text[:max(0, n)], cmp.Or(err, err2)
}
