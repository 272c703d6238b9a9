//go:build netns

package netnstest

import (
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/internal/pace"
)

// A process of a group of its own is killed with its children, and counted with them.
func TestProcessGroup(t *testing.T) {
	n := Make(t)
	cmd := exec.Command("sh", "-c", "sleep 600 & echo $! ; wait")
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	p, err := n.Launch(cmd, filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	pace.Until(t, "the child's number", func() bool { return strings.HasSuffix(p.LogTail(100), "\n") })
	child, err := strconv.Atoi(strings.TrimSpace(p.LogTail(100)))
	if err != nil {
		t.Fatal(err)
	}
	group, err := Usages(func(u Usage) bool { return u.Group == p.Pid() })
	if err != nil || len(group) != 2 {
		t.Errorf("the group is %+v, %v, want two processes", group, err)
	}
	if u, err := UsageOf(child); err != nil || u.Parent != p.Pid() || u.Resident <= 0 {
		t.Errorf("the child is %+v, %v", u, err)
	}
	if now, peak, err := Memory(p.Pid()); err != nil || now <= 0 || peak < now {
		t.Errorf("memory %d, %d at the peak, %v", now, peak, err)
	}
	if err := p.Kill(); err != nil {
		t.Error(err)
	}
	pace.Until(t, "no child is left", func() bool { return unix.Kill(child, 0) != nil || zombie(child) })
}

// zombie reports whether a process has ended and is not waited for: process 1 of a container may not.
func zombie(pid int) bool {
	u, err := UsageOf(pid)
	return err == nil && u.Resident == 0
}

// A process that does not end is killed once patience is over, and that is an error.
func TestProcessEnd(t *testing.T) {
	n := Make(t)
	for script, fails := range map[string]bool{"trap 'exit 0' TERM; echo; while :; do sleep 0.01; done": false, "trap '' TERM; echo; while :; do sleep 0.01; done": true} {
		p, err := n.Launch(exec.Command("sh", "-c", script), filepath.Join(t.TempDir(), "log"))
		if err != nil {
			t.Fatal(err)
		}
		pace.Until(t, "it has begun", func() bool { return p.LogTail(1) != "" })
		patience := time.Minute
		if fails {
			patience = 50 * time.Millisecond
		}
		if err := p.End(unix.SIGTERM, patience); (err != nil) != fails {
			t.Errorf("%s: %v", script, err)
		}
		if unix.Kill(p.Pid(), 0) == nil {
			t.Errorf("%s: it still runs", script)
		}
	}
}
