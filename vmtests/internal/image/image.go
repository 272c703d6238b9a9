// Package image makes what guests boot from: a kernel and a root file system of
// Debian packages, and keeps them in a cache of this user.
package image

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// EnvCache names the folder of the cache.
const EnvCache = "SVCPROXY_VM_CACHE"

// packages are in the root file system, beside Debian's minimal set.
var packages = []string{
	"systemd", "systemd-sysv",
	"iproute2", "iptables", "nftables", "ipset", "ipvsadm", "conntrack", "keepalived",
	"kmod", "procps",
	"rpm",     // which installs our package beside dpkg's
	"busybox", // servers and clients of docs/first-service.md
}

// kernelPackage depends on the newest kernel of its kind. This one boots in half
// the time of linux-image-amd64.
const kernelPackage = "linux-image-cloud-amd64"

//go:embed build.sh
var script []byte

// An Image is what guests boot from. It is never changed once made.
type Image struct{ dir string }

// Kernel and Root return paths of the kernel and of a squashfs.
func (i Image) Kernel() string { return filepath.Join(i.dir, "vmlinuz") }
func (i Image) Root() string   { return filepath.Join(i.dir, "root.squashfs") }

// Modules returns the paths of the modules it takes to mount Root, in the order to load them.
func (i Image) Modules() ([]string, error) {
	paths, err := filepath.Glob(filepath.Join(i.dir, "modules", "*.ko")) // sorted, and numbered by the script
	if err == nil && len(paths) == 0 {
		err = fmt.Errorf("no modules in %s", i.dir)
	}
	return paths, err
}

// Get returns the image, which is made when the cache has none. That takes one to two
// minutes, a network, and the programs mmdebstrap, mksquashfs and modprobe.
func Get(ctx context.Context) (Image, error) { return get(ctx, kernelVersion(ctx)) }

func get(ctx context.Context, kernel string) (Image, error) {
	cache, err := cacheDir()
	if err != nil {
		return Image{}, err
	}
	img := Image{filepath.Join(cache, key(kernel))}
	if _, err := os.Stat(img.dir); err == nil {
		return img, nil
	}
	unlock, err := lock(ctx, filepath.Join(cache, "lock"))
	if err != nil {
		return Image{}, fmt.Errorf("waiting for another process that makes the image: %w", err)
	}
	defer unlock()
	if _, err := os.Stat(img.dir); err == nil { // made while we waited
		return img, nil
	}
	if err := build(ctx, cache, img.dir); err != nil {
		return Image{}, fmt.Errorf("making the image of guests: %w", err)
	}
	return img, nil
}

func cacheDir() (string, error) {
	dir := os.Getenv(EnvCache)
	if dir == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return "", fmt.Errorf("finding a place for images (%s names one): %w", EnvCache, err)
		}
		dir = filepath.Join(user, "svcproxy-vm")
	}
	return dir, os.MkdirAll(dir, 0o755)
}

// key names the image by all that goes into it.
func key(kernel string) string {
	h := sha256.New()
	for _, part := range []string{string(script), strings.Join(packages, " "), kernel} {
		fmt.Fprintf(h, "%d:%s", len(part), part)
	}
	return hex.EncodeToString(h.Sum(nil))[:16]
}

// kernelVersion is what this host's apt knows as the newest kernel, so that a new
// one makes a new image. Hosts without apt keep the image that they have.
func kernelVersion(ctx context.Context) string {
	out, err := exec.CommandContext(ctx, "apt-cache", "depends", kernelPackage).Output()
	if err != nil {
		return ""
	}
	return string(out)
}

// lock takes a lock that ends with this process, or with unlock.
func lock(ctx context.Context, path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			f.Close()
			return nil, &fs.PathError{Op: "lock", Path: path, Err: err}
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, context.Cause(ctx)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// build makes an image beside its place and moves it there when it is whole. It
// holds the lock: what is beside is of a process that was killed.
func build(ctx context.Context, cache, dir string) (err error) {
	temporary := filepath.Join(cache, "unfinished")
	if err := errors.Join(os.RemoveAll(temporary), os.Mkdir(temporary, 0o755)); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(temporary)) }()
	path := filepath.Join(temporary, "build.sh")
	if err := os.WriteFile(path, script, 0o755); err != nil {
		return err
	}
	out := filepath.Join(temporary, "image")
	cmd := exec.CommandContext(ctx, path, out, kernelPackage, strings.Join(packages, ","))
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGTERM}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second // mmdebstrap takes down its mounts
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", filepath.Base(path), err, text)
	}
	return os.Rename(out, dir)
}
