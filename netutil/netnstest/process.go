package netnstest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"

	"golang.org/x/sys/unix"
)

// A Process is a program that runs in a namespace until it is ended. It is killed when this process dies.
type Process struct {
	Cmd   *exec.Cmd
	Begun time.Time

	log   string
	ended chan struct{} // closed when it has ended
	err   error         // of Wait, from then on
}

// Launch starts cmd in the namespace and does not wait for it. What it writes is added to the file log.
func (n *Namespace) Launch(cmd *exec.Cmd, log string) (*Process, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the log of %s: %w", cmd.Path, err)
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	p := &Process{Cmd: cmd, Begun: time.Now(), log: log, ended: make(chan struct{})}
	if err := n.Start(cmd); err != nil {
		return nil, err
	}
	go func() {
		p.err = cmd.Wait()
		close(p.ended)
	}()
	return p, nil
}

// Pid returns its process id.
func (p *Process) Pid() int { return p.Cmd.Process.Pid }

// Ended is closed when the process has ended.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// Wait waits until the process has ended, and returns its error as exec.Cmd.Wait does. When patience is over it kills it.
func (p *Process) Wait(patience time.Duration) error {
	select {
	case <-p.ended:
		return p.err
	case <-time.After(patience):
		return errors.Join(fmt.Errorf("%s still runs after %v", p.Cmd.Path, patience), p.Kill())
	}
}

// End sends a signal to the process and then waits as Wait does.
func (p *Process) End(sig os.Signal, patience time.Duration) error {
	if err := p.Cmd.Process.Signal(sig); err != nil {
		return fmt.Errorf("sending %s to %s: %w", sig, p.Cmd.Path, err)
	}
	return p.Wait(patience)
}

// Kill kills the process, which may have ended, and waits for it. If Cmd was to have a process group of its own, it
// kills all of it.
func (p *Process) Kill() error {
	to := p.Pid()
	if p.Cmd.SysProcAttr.Setpgid {
		to = -to
	}
	select {
	case <-p.ended:
		if to > 0 {
			return nil // the number may be another's by now
		}
	default:
	}
	err := unix.Kill(to, unix.SIGKILL)
	<-p.ended
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}

// Log returns what the process has written, and those before it that had the same log.
func (p *Process) Log() (string, error) {
	text, err := os.ReadFile(p.log)
	return string(text), err
}

// LogTail returns the last bytes of Log, or why there are none.
func (p *Process) LogTail(bytes int) string {
	text, err := p.Log()
	if err != nil {
		return err.Error()
	}
	return text[max(0, len(text)-bytes):]
}
