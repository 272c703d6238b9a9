//go:build netns

package hosts

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/netutil/netnstest"
	"svcproxy.dev/svcproxy/test/lab"
)

// A keeper is keepalived on a host, as its unit starts it.
type keeper struct {
	proc *netnstest.Process // nil: it has ended
	dir  string
}

// startKeeper starts keepalived, which ends with the test.
func startKeeper(t *testing.T, h *lab.Host, dir, conf string) *keeper {
	t.Helper()
	k := &keeper{dir: dir}
	if err := os.WriteFile(k.path("keepalived.conf"), []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	shell(t, h, "keepalived", "--config-test", "--use-file", k.path("keepalived.conf"))
	cmd := exec.Command("keepalived", "--dont-fork", "--log-console", "--use-file", k.path("keepalived.conf"),
		"--pid", k.path("keepalived.pid"), "--vrrp_pid", k.path("vrrp.pid"), "--checkers_pid", k.path("checkers.pid"))
	var err error
	if k.proc, err = h.Launch(cmd, k.path("keepalived.log")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { k.end(t) })
	return k
}

func (k *keeper) path(name string) string { return filepath.Join(k.dir, name) }

// end ends keepalived.
func (k *keeper) end(t *testing.T) {
	if k.proc == nil {
		return
	}
	if err := k.proc.Cmd.Process.Signal(unix.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Error(err)
	}
	<-k.proc.Ended()
	if t.Failed() {
		t.Logf("what keepalived said:\n%s", k.log(t))
	}
	k.proc = nil
}

// kill kills both of its processes: the one that speaks VRRP would clean up after the other.
func (k *keeper) kill(t *testing.T) {
	t.Helper()
	text, err := os.ReadFile(k.path("vrrp.pid"))
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err == nil {
		err = k.proc.Cmd.Process.Signal(unix.SIGSTOP) // lest it starts another
	}
	if err == nil {
		err = unix.Kill(pid, unix.SIGKILL)
	}
	// Process 1 of a container may leave a zombie, which the next keepalived would take for alive.
	if err := errors.Join(err, k.proc.Kill(), os.Remove(k.path("vrrp.pid"))); err != nil {
		t.Fatal(err)
	}
	k.proc = nil
}

// log returns what keepalived has said.
func (k *keeper) log(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(k.path("keepalived.log"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// rated returns an error unless the last change of the host's priority is the one given.
func (k *keeper) rated(t *testing.T, change string) error {
	t.Helper()
	text := k.log(t)
	at := strings.LastIndex(text, "Changing effective priority ")
	if at < 0 || !strings.HasPrefix(text[at:], "Changing effective priority "+change) {
		return errors.New("no priority changed " + change)
	}
	return nil
}

// said returns an error unless keepalived has said something.
func (k *keeper) said(t *testing.T, text string) error {
	t.Helper()
	if !strings.Contains(k.log(t), text) {
		return errors.New("keepalived has not said: " + text)
	}
	return nil
}

// saidOften returns how often keepalived has said something.
func (k *keeper) saidOften(t *testing.T, text string) int {
	t.Helper()
	return strings.Count(k.log(t), text)
}
