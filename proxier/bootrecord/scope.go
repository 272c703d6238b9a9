package bootrecord

import (
	"bytes"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// A Scope is what a record is valid for, in the words of its first line.
type Scope string

// Here returns the boot of the kernel and the network namespace of the caller.
func Here() (Scope, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("reading the boot ID: %w", err)
	}
	namespace, err := netnsID()
	if err != nil {
		return "", fmt.Errorf("identifying the network namespace: %w", err)
	}
	return Scope(fmt.Sprintf("boot %s, network namespace %s", bytes.TrimSpace(boot), namespace)), nil
}

// netnsID identifies a network namespace uniquely within a boot: by its cookie, since
// Linux 5.14. Before, by the inode of its file, which a later namespace may get again.
func netnsID() (string, error) {
	s, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(s)
	cookie, err := unix.GetsockoptUint64(s, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err == nil {
		return fmt.Sprintf("cookie %d", cookie), nil
	}
	info, err := os.Stat("/proc/thread-self/ns/net")
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("file %d", info.Sys().(*syscall.Stat_t).Ino), nil
}
