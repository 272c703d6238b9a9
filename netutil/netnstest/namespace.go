package netnstest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/internal/pace"
)

const (
	// Dir is where named namespaces are mounted, as ip-netns(8) does.
	Dir = "/run/netns"

	// namePrefix is followed by the process id, so that Sweep can tell what the dead left.
	namePrefix = "svcp-"

	// pipeDelay is how long what a command has started may hold its output after the command has ended. On a busy machine
	// that can be any program that another goroutine starts: it holds all that is open until its exec.
	pipeDelay = 20 * time.Second
)

// CommandTimeout ends a command that hangs, lengthened as by pace.Scale. The slowest, iptables-save, takes some 20 ms; a
// package whose commands have more to do sets it before its tests run.
var CommandTimeout = 20 * time.Second

// home is the namespace of this process, to which threads go back. It is found before any test has called Enter.
var home, errHome = netns.Get()

// made counts what UniqueName has named.
var made atomic.Int64

// UniqueName returns a name that no other call of any process returns, and that Sweep knows.
func UniqueName() string { return fmt.Sprintf("%s%d-%d", namePrefix, os.Getpid(), made.Add(1)) }

// A Namespace is a network namespace.
type Namespace struct {
	Name string // as ip-netns(8) lists it

	Links *netlink.Handle

	handle netns.NsHandle
}

// prepare removes what dead tests left, and makes the directory of namespaces a mount of its own, as ip-netns(8) does for
// its first namespace: those that are there before that cannot be removed after it.
var prepare = sync.OnceValue(func() error {
	return errors.Join(Sweep(), locked(func() error {
		share := func() error { return unix.Mount("", Dir, "none", unix.MS_SHARED|unix.MS_REC, "") }
		if share() == nil {
			return nil // it is one
		}
		return errors.Join(unix.Mount(Dir, Dir, "none", unix.MS_BIND|unix.MS_REC, ""), share())
	}))
})

// locked makes the directory of namespaces and runs fn while no test of another process does.
func locked(fn func() error) error {
	if err := os.MkdirAll(Dir, 0o755); err != nil {
		return err
	}
	dir, err := os.Open(Dir)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX); err != nil {
		return err
	}
	return fn()
}

// New makes a namespace with its loopback up. Close removes it. The first one of a process calls Sweep.
func New(name string) (*Namespace, error) {
	ns := &Namespace{Name: name}
	err := prepare()
	if err == nil {
		err = onThread(func() (err error) {
			ns.handle, err = netns.NewNamed(name)
			return err
		})
	}
	if err == nil {
		ns.Links, err = netlink.NewHandleAt(ns.handle)
	}
	if err == nil {
		err = ns.init()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("making namespace %s: %w", name, err), ns.Close())
	}
	return ns, nil
}

// Make makes a namespace that is removed when the test ends.
func Make(t testing.TB) *Namespace {
	t.Helper()
	n, err := New(UniqueName())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	return n
}

// init makes the kernel of a new namespace predictable.
func (n *Namespace) init() error {
	lo, err := n.Links.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := n.Links.LinkSetUp(lo); err != nil {
		return err
	}
	return n.Sysctl(
		"net.ipv4.icmp_ratemask=0", // no type is limited, for a peer or in all; else refusals look like drops after the first few
		"net.ipv6.icmp.ratemask=0",
		"net.ipv4.ping_group_range=0 0",
		"net.ipv4.conf.all.rp_filter=0", // packets take other ways back than they came
		"net.ipv4.conf.default.rp_filter=0",
		"net.ipv4.conf.all.send_redirects=0", // the router sends packets back out of where they came in
		"net.ipv4.conf.default.send_redirects=0",
		"net.ipv4.conf.all.accept_redirects=0",
		"net.ipv6.conf.all.accept_redirects=0",
		"net.ipv6.conf.default.accept_redirects=0",
		"net.ipv6.conf.all.accept_dad=0", // addresses are usable at once
		"net.ipv6.conf.default.accept_dad=0",
	)
}

// Close removes the namespace. The kernel ends it with the last of its processes and sockets.
func (n *Namespace) Close() error {
	if n.Links != nil {
		n.Links.Close()
	}
	if n.handle <= 0 {
		return nil
	}
	return errors.Join(n.handle.Close(), netns.DeleteNamed(n.Name))
}

// Do runs fn on a thread that is in the namespace. What fn opens or starts stays
// there; fn itself must not go to another goroutine to do so.
func (n *Namespace) Do(fn func() error) error {
	return onThread(func() error {
		if err := netns.Set(n.handle); err != nil {
			return fmt.Errorf("entering namespace %s: %w", n.Name, err)
		}
		return fn()
	})
}

// onThread runs fn, which may change the namespace of its thread, and brings the
// thread back. A thread must not end without need: processes that it started
// die with it, see Start.
func onThread(fn func() error) error {
	if errHome != nil {
		return fmt.Errorf("finding the namespace of this process: %w", errHome)
	}
	errs := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		err := fn()
		if netns.Set(home) == nil {
			runtime.UnlockOSThread() // else the thread ends with this goroutine
		}
		errs <- err
	}()
	return <-errs
}

// Sysctl sets kernel parameters of the namespace, each as "net.ipv4.ip_forward=1".
func (n *Namespace) Sysctl(settings ...string) error {
	return n.Do(func() error {
		for _, s := range settings {
			key, value, _ := strings.Cut(s, "=")
			path := "/proc/sys/" + strings.ReplaceAll(key, ".", "/")
			if err := os.WriteFile(path, []byte(value), 0o644); err != nil {
				return fmt.Errorf("setting %s: %w", s, err)
			}
		}
		return nil
	})
}

// Run runs a command in the namespace and returns what it wrote to standard output.
func (n *Namespace) Run(name string, args ...string) (string, error) {
	return n.RunInput("", name, args...)
}

// RunInput is Run with a standard input.
func (n *Namespace) RunInput(input, name string, args ...string) (string, error) {
	ctx, cancel := pace.Context(CommandTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.SysProcAttr, cmd.WaitDelay = &unix.SysProcAttr{Setpgid: true}, pipeDelay
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &stdout, &stderr
	if err := n.Start(cmd); err != nil {
		return "", err
	}
	if err := cmd.Wait(); err != nil {
		return stdout.String(), fmt.Errorf("%s %s in %s: %w: %s",
			name, strings.Join(args, " "), n.Name, cmp.Or(context.Cause(ctx), err), bytes.TrimSpace(stderr.Bytes()))
	}
	return stdout.String(), nil
}

// Start starts cmd in the namespace. It is killed when this process dies.
func (n *Namespace) Start(cmd *exec.Cmd) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &unix.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = unix.SIGKILL
	if err := n.Do(cmd.Start); err != nil {
		return fmt.Errorf("starting %s in %s: %w", cmd.Path, n.Name, err)
	}
	return nil
}

// TempDir makes a directory that Sweep finds when this process dies. Not
// t.TempDir: the name of a socket in it has 107 bytes at most, unix(7).
func TempDir() (string, error) {
	return os.MkdirTemp("", fmt.Sprintf("%s%d-", namePrefix, os.Getpid()))
}

// Sweep removes the namespaces and directories of tests whose process died before it could do so.
func Sweep() error {
	return locked(func() error { return errors.Join(sweep(Dir, removeNamed), sweep(os.TempDir(), RemoveDir)) })
}

// removeNamed removes the file of a namespace, not mounted if its owner died before.
func removeNamed(path string) error {
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
		return err
	}
	return os.Remove(path)
}

// RemoveDir removes a directory of a daemon, on whose state another file system may be mounted.
func RemoveDir(dir string) error {
	_ = unix.Unmount(filepath.Join(dir, "state"), unix.MNT_DETACH) // it rarely is
	return os.RemoveAll(dir)
}

func sweep(dir string, remove func(path string) error) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("looking for what dead tests left: %w", err)
	}
	var errs []error
	for _, e := range entries {
		if ownerDied(e.Name()) {
			errs = append(errs, remove(filepath.Join(dir, e.Name())))
		}
	}
	return errors.Join(errs...)
}

// ownerDied reports whether name is of a test whose process is gone.
func ownerDied(name string) bool {
	rest, ok := strings.CutPrefix(name, namePrefix)
	if !ok {
		return false
	}
	digits, _, _ := strings.Cut(rest, "-")
	pid, err := strconv.Atoi(digits)
	return err == nil && pid > 0 && errors.Is(unix.Kill(pid, 0), unix.ESRCH)
}
