package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

const (
	searchPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

	// devicePatience is generous, for a busy machine: on an idle one the kernel finds disks within 100 ms.
	devicePatience = 30 * time.Second

	rootDevice     = "/dev/vda" // a squashfs
	writableDevice = "/dev/vdb" // an ext4, in guests whose changes outlive them
)

type mount struct {
	source, target, kind string
	flags                uintptr
	data                 string
}

// kernelMounts are moved from the initial root to the real one.
var kernelMounts = []mount{
	{"devtmpfs", "/dev", "devtmpfs", 0, ""},
	{"proc", "/proc", "proc", 0, ""},
	{"sysfs", "/sys", "sysfs", 0, ""},
	{"tmpfs", "/run", "tmpfs", 0, "mode=755"},
}

func mountAll(mounts ...mount) error {
	for _, m := range mounts {
		if err := os.MkdirAll(m.target, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.source, m.target, m.kind, m.flags, m.data); err != nil {
			return fmt.Errorf("mounting %s: %w", m.target, err)
		}
	}
	return nil
}

// enterRoot makes the image, with a writable layer over it and the host's files
// in that, the root of this process.
func enterRoot() error {
	if err := mountAll(kernelMounts...); err != nil {
		return err
	}
	if err := loadModules(); err != nil {
		return err
	}
	if err := mountRoot(); err != nil {
		return err
	}
	if err := copyFiles("/files", "/newroot"); err != nil {
		return fmt.Errorf("copying the host's files: %w", err)
	}
	for _, m := range kernelMounts {
		if err := mountAll(mount{m.target, "/newroot" + m.target, "", unix.MS_MOVE, ""}); err != nil {
			return err
		}
	}
	return switchTo("/newroot")
}

// loadModules loads what the host put there, in the order of its names.
func loadModules() error {
	modules, err := filepath.Glob("/modules/*")
	if err != nil {
		return err
	}
	for _, name := range modules {
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		err = unix.FinitModule(int(f.Fd()), "", 0)
		f.Close()
		if err != nil {
			return fmt.Errorf("loading %s: %w", name, err)
		}
	}
	return nil
}

func mountRoot() error {
	if err := await(rootDevice); err != nil {
		return err
	}
	writable := mount{"tmpfs", "/writable", "tmpfs", 0, "size=50%"}
	if _, err := os.Stat(writableDevice); err == nil { // found together with the first
		writable = mount{writableDevice, "/writable", "ext4", 0, ""}
	}
	if err := mountAll(mount{rootDevice, "/image", "squashfs", unix.MS_RDONLY, ""}, writable); err != nil {
		return err
	}
	for _, dir := range []string{"/writable/upper", "/writable/work"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	return mountAll(mount{"overlay", "/newroot", "overlay", 0, "lowerdir=/image,upperdir=/writable/upper,workdir=/writable/work"})
}

func await(name string) error {
	for deadline := time.Now().Add(devicePatience); ; time.Sleep(2 * time.Millisecond) {
		_, err := os.Stat(name)
		if err == nil || time.Now().After(deadline) {
			return err
		}
	}
}

// copyFiles copies a tree over another.
func copyFiles(from, to string) error {
	return filepath.WalkDir(from, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		target := to + name[len(from):]
		if d.IsDir() {
			return os.MkdirAll(target, 0o755)
		}
		return copyFile(name, target)
	})
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	out, err := os.OpenFile(to, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, info.Mode())
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Chmod(info.Mode()), out.Close()) // no umask
}

// switchTo makes a mounted tree the root. What the initial root held stays in memory, unseen.
func switchTo(root string) error {
	if err := os.Chdir(root); err != nil {
		return err
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("moving %s to /: %w", root, err)
	}
	if err := unix.Chroot("."); err != nil {
		return fmt.Errorf("entering %s: %w", root, err)
	}
	return os.Chdir("/")
}
