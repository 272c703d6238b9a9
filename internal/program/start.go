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

// A program can be on a disk that is gone. Go starts a child as vfork(2) does, and the garbage collector,
// for which all goroutines wait, waits until the child has begun its program (syscall.forkExec): the daemon would stand
// still with the disk. So it starts itself, which is in memory, and that process becomes the program: some 10 ms of one
// processor more.
const (
	self    = "/proc/self/exe"
	starter = "svcproxy-program" // its name, by which a process knows what it is for

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
		why = reason(unix.Exec(command[0], command, os.Environ()))
	}
	fmt.Fprint(os.NewFile(startFailure, "failure"), why)
	os.Exit(1)
}

// A beginning is how far a process has got that is to become a program.
type beginning struct {
	group *Group
	r     *os.File // ends when it is the program

	mu     sync.Mutex
	over   bool
	failed error
	late   bool
}

// begin starts one.
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

// poll reports whether the process has become the program, or has ended, or why it cannot become it. It does not wait.
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

// isLate reports whether the process has not become the program, and counts it until close.
func (b *beginning) isLate() bool {
	if over, _ := b.poll(); over {
		return false
	}
	b.late = true
	b.group.unbegun.Add(1)
	return true
}

// close is called when the process has ended.
func (b *beginning) close() {
	if b.late {
		b.group.unbegun.Add(-1)
	}
	b.r.Close()
}

// readNow reads what there is; EAGAIN: nothing, and it may come.
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
