//go:build netns

package lab

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// The image for containers has all that its modes need: svcproxy works in it as its
// root, with the capabilities and mounts that the DaemonSet gives, and none besides.
func TestImage(t *testing.T) {
	root := unpackedImage(t)
	for _, m := range modes {
		t.Run(m.String(), func(t *testing.T) {
			e := newModeEnv(t, m)
			e.daemon.binary = contained(t, root, e.daemon.Dir)
			if err := errors.Join(e.daemon.Settings(fmt.Sprintf("mode = %q\n", m.name)), e.daemon.Start()); err != nil {
				t.Fatalf("%v\n%s", err, e.daemon.LogTail(logLines))
			}
			e.apply(t, e.service(at(e.Local[0])...))
			e.expect(t, check{from: e.Client, to: e.vip(1), want: by(e.Local[0])})
			if text, err := e.daemon.Command("version"); err != nil || !strings.HasPrefix(text, "svcproxy v9.9.9,") {
				t.Errorf("version of the image: %s%v", text, err)
			}
			if err := e.daemon.Stop(); err != nil {
				t.Error(err)
			}
			if _, err := e.daemon.Command("cleanup"); err != nil {
				t.Errorf("cleanup: %v", err)
			}
		})
	}
}

// unpackedImage makes the image and returns its root.
func unpackedImage(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, command := range [][]string{
		{"make", "-C", "../..", "image", "VERSION=v9.9.9", "IMAGE=" + filepath.Join(dir, "image.tar")},
		{"mkdir", filepath.Join(dir, "image"), filepath.Join(dir, "root")},
		{"tar", "-C", filepath.Join(dir, "image"), "-xf", filepath.Join(dir, "image.tar")},
		{"umoci", "raw", "unpack", "--image", filepath.Join(dir, "image") + ":v9.9.9", filepath.Join(dir, "root")},
	} {
		if out, err := exec.CommandContext(t.Context(), command[0], command[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%q: %v\n%s", command, err, out)
		}
	}
	return filepath.Join(dir, "root")
}

// A container is how a program of the image is run.
type container struct {
	Root   string
	Mounts []string // directories and files of the host that are there too, at the same place
}

// envContainer has the container in which this test's program runs svcproxy, as JSON.
const envContainer = "SVCPROXY_LAB_CONTAINER"

// xtablesLock is what all programs of legacy iptables take turns by.
const xtablesLock = "/run/xtables.lock"

// contained returns a program that runs svcproxy in a container, with a directory of the host.
func contained(t *testing.T, root, dir string) string {
	t.Helper()
	for _, mount := range []string{filepath.Join(root, dir), filepath.Join(root, "run")} {
		if err := os.MkdirAll(mount, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, lock := range []string{filepath.Join(root, xtablesLock), xtablesLock} { // as FileOrCreate does
		f, err := os.OpenFile(lock, os.O_CREATE|os.O_RDONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	spec, err := json.Marshal(container{root, []string{dir, xtablesLock}})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "contained")
	script := fmt.Sprintf("#!/bin/sh\nexport %s='%s'\nexec '%s' \"$@\"\n", envContainer, spec, self)
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// keptCapabilities are those of the DaemonSet.
var keptCapabilities = []uintptr{unix.CAP_NET_ADMIN, unix.CAP_NET_RAW, unix.CAP_NET_BIND_SERVICE}

// enter becomes svcproxy in the container that envContainer names. It returns only
// what went wrong.
func enter(spec string) error {
	var c container
	if err := json.Unmarshal([]byte(spec), &c); err != nil {
		return err
	}
	if err := c.mount(); err != nil {
		return err
	}
	if err := errors.Join(unix.Chroot(c.Root), unix.Chdir("/"), dropCapabilities()); err != nil {
		return err
	}
	return unix.Exec("/usr/sbin/svcproxy", append([]string{"svcproxy"}, os.Args[1:]...), []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"})
}

// mount makes the mounts of a container, in a mount namespace of its own.
func (c container) mount() error {
	err := errors.Join(unix.Unshare(unix.CLONE_NEWNS), unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		unix.Mount("proc", filepath.Join(c.Root, "proc"), "proc", 0, ""))
	for _, path := range c.Mounts {
		err = errors.Join(err, unix.Mount(path, filepath.Join(c.Root, path), "", unix.MS_BIND, ""))
	}
	return err
}

// dropCapabilities leaves this thread, and what it becomes, those that are kept.
func dropCapabilities() error {
	for capability := range uintptr(unix.CAP_LAST_CAP + 1) {
		if slices.Contains(keptCapabilities, capability) {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, capability, 0, 0, 0); err != nil && !errors.Is(err, unix.EINVAL) {
			return err // EINVAL: an older kernel has fewer
		}
	}
	return nil
}
