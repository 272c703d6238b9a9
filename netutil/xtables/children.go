package xtables

import (
	"io"
	"os/exec"
	"slices"
	"sync"
	"time"
)

// children are the processes of the programs that this process started last.
var children struct {
	sync.Mutex
	last [64]child // far more than run within childPatience, but for many changes one by one
	next int
}

type child struct {
	pid   uint32
	ended time.Time // zero: it runs
}

// childPatience is how long a program's last event of nf_tables may wait to be read
// after it has ended. Its process id may be another program's some time later.
const childPatience = time.Minute

// Started reports whether a process is, or was just now, a program that changes rules for us.
func Started(pid uint32) bool {
	children.Lock()
	defer children.Unlock()
	return slices.ContainsFunc(children.last[:], func(c child) bool {
		return c.pid == pid && (c.ended.IsZero() || time.Since(c.ended) < childPatience)
	})
}

func started(pid int) {
	children.Lock()
	defer children.Unlock()
	children.last[children.next%len(children.last)] = child{pid: uint32(pid)}
	children.next++
}

func ended(pid int) {
	children.Lock()
	defer children.Unlock()
	for i := range children.last {
		if c := &children.last[i]; c.pid == uint32(pid) && c.ended.IsZero() {
			c.ended = time.Now()
		}
	}
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
	defer ended(cmd.Process.Pid)
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
