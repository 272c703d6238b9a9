package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// configureGuest does what systemd would: what tests and network namespaces rely on.
func configureGuest() error {
	err := mountAll(
		mount{"tmpfs", "/tmp", "tmpfs", 0, "mode=1777"},
		mount{"devpts", "/dev/pts", "devpts", 0, ""},
		mount{"cgroup2", "/sys/fs/cgroup", "cgroup2", 0, ""},
		mount{"", "/", "", unix.MS_REC | unix.MS_SHARED, ""},
	)
	if err != nil {
		return err
	}
	if err := unix.Sethostname([]byte("guest")); err != nil {
		return fmt.Errorf("setting the host name: %w", err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: openFiles, Max: openFiles}); err != nil {
		return fmt.Errorf("setting how many files a process may open: %w", err)
	}
	return loopbackUp()
}

// openFiles is what systemd lets processes have; the kernel's 4096 is too little for a lab.
const openFiles = 512 << 10

func loopbackUp() error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("setting lo up: %w", err)
	}
	defer unix.Close(s)
	request, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	request.SetUint16(unix.IFF_UP)
	if err := unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, request); err != nil {
		return fmt.Errorf("setting lo up: %w", err)
	}
	return nil
}

// openPort opens the virtio serial port of a name. Names are in sysfs only,
// where no udev makes links of them.
func openPort(name string) (*os.File, error) {
	for deadline := time.Now().Add(devicePatience); ; time.Sleep(2 * time.Millisecond) {
		names, err := filepath.Glob("/sys/class/virtio-ports/*/name")
		if err != nil {
			return nil, err
		}
		for _, file := range names {
			text, err := os.ReadFile(file)
			if err == nil && strings.TrimSpace(string(text)) == name {
				return os.OpenFile("/dev/"+filepath.Base(filepath.Dir(file)), os.O_RDWR, 0)
			}
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("no serial port %s", name)
		}
	}
}
