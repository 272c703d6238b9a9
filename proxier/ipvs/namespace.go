package ipvs

import (
	"bytes"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// place names the boot of the kernel and the network namespace of the caller, of
// which a record is good: virtual servers outlive neither.
func scope() (string, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("asking which boot this is: %w", err)
	}
	namespace, err := netnsID()
	if err != nil {
		return "", fmt.Errorf("asking which network namespace this is: %w", err)
	}
	return fmt.Sprintf("boot %s, network namespace %s", bytes.TrimSpace(boot), namespace), nil
}

// namespace names a network namespace as no other of this boot is: by its cookie,
// which Linux has since 5.14. Before, it is the number of its file, which a later
// namespace may get again.
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
