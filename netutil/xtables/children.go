package xtables

import (
	"io"
	"os/exec"
	"slices"
	"sync"
)

// children are the processes of the programs that this process started last.
var children struct {
	sync.Mutex
	pids [64]uint32 // far more than run within the time that an event of nf_tables waits to be read
	next int
}

// Started reports whether a process is, or was, a program that changes rules for us.
func Started(pid uint32) bool {
	children.Lock()
	defer children.Unlock()
	return slices.Contains(children.pids[:], pid)
}

func started(pid int) {
	children.Lock()
	defer children.Unlock()
	children.pids[children.next%len(children.pids)] = uint32(pid)
	children.next++
}

// runKnown runs a program that has nothing to do before its process is known to
// Started: it gets its input after that.
func runKnown(cmd *exec.Cmd, stdin io.Reader) error {
	known := make(chan struct{})
	cmd.Stdin = waitingReader{known, stdin}
	if err := cmd.Start(); err != nil {
		return err
	}
	started(cmd.Process.Pid)
	close(known)
	return cmd.Wait()
}

// A waitingReader reads when a channel is closed.
type waitingReader struct {
	until <-chan struct{}
	io.Reader
}

func (r waitingReader) Read(p []byte) (int, error) {
	<-r.until
	return r.Reader.Read(p)
}
