package healthcheck

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"time"

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
)

// init comes before all that another process of this program does.
func init() {
	if os.Args[0] == starter && len(os.Args) > 1 {
		become(os.Args[1:])
	}
}

// become makes this process the program, or ends it.
func become(command []string) {
	unix.CloseOnExec(startFailure)
	err := unix.Exec(command[0], command, os.Environ())
	if errno, ok := err.(unix.Errno); ok {
		fmt.Fprint(os.NewFile(startFailure, "failure"), int(errno))
	}
	os.Exit(1)
}

// startTold starts a process that becomes a program, and returns what tells, when it has ended, why it did not.
func startTold(cmd *exec.Cmd) (why func() error, err error) {
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
	return func() error {
		defer r.Close()
		return readErrno(r)
	}, nil
}

// readErrno reads the number of an error; nil: there is none.
func readErrno(r *os.File) error {
	_ = r.SetReadDeadline(time.Now().Add(pipeWait)) // who wrote has ended
	text, _ := io.ReadAll(io.LimitReader(r, 16))
	if number, err := strconv.Atoi(string(text)); err == nil {
		return unix.Errno(number)
	}
	return nil
}
