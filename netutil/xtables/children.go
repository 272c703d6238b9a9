package xtables

import (
	"io"
	"os/exec"
	"slices"
	"sync"

	"svcproxy.dev/svcproxy/netutil/nft"
)

// children are the programs that this process started last.
var children struct {
	sync.Mutex
	last [64]child // far more than run before their events are read, except when many changes come one by one
	next int
}

// A child commits to nf_tables after one generation and up to another. Its process ID
// is not enough: one in another PID namespace may have the same at any time.
type child struct {
	pid         uint32
	after, upTo uint32
	running     bool // upTo is not known yet
}

// committed reports whether c may have committed a generation. Generations wrap around.
func (c child) committed(generation uint32) bool {
	return int32(generation-c.after) > 0 && (c.running || int32(c.upTo-generation) >= 0)
}

// Committed reports whether a commit came from a program that this process started.
func Committed(pid, generation uint32) bool {
	children.Lock()
	defer children.Unlock()
	return slices.ContainsFunc(children.last[:], func(c child) bool { return c.pid == pid && c.committed(generation) })
}

// running reports whether this process started a program that has not ended.
func running(pid int) bool {
	children.Lock()
	defer children.Unlock()
	return slices.ContainsFunc(children.last[:], func(c child) bool { return c.running && c.pid == uint32(pid) })
}

func started(pid int, generation uint32) {
	children.Lock()
	defer children.Unlock()
	children.last[children.next%len(children.last)] = child{pid: uint32(pid), after: generation, running: true}
	children.next++
}

func ended(pid int, generation uint32) {
	children.Lock()
	defer children.Unlock()
	for i := range children.last {
		if c := &children.last[i]; c.pid == uint32(pid) && c.running {
			c.running, c.upTo = false, generation
		}
	}
}

// runKnown runs a program whose input waits until Committed knows its process. Where
// the generation of nf_tables cannot be read, there are no events of commits either.
func runKnown(cmd *exec.Cmd, stdin io.Reader) error {
	before, unknown := nft.CurrentGeneration()
	input, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return err
	}
	if unknown == nil {
		started(cmd.Process.Pid, before)
	}
	go func() {
		_, _ = io.Copy(input, stdin) // fails where the program ends before it has read all, and then says why
		_ = input.Close()
	}()
	err = cmd.Wait()
	after, unknown := nft.CurrentGeneration()
	if unknown != nil {
		after = before // its commits count as foreign, which causes a look
	}
	ended(cmd.Process.Pid, after)
	return err
}
