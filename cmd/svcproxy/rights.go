package main

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// mayAdminister returns an error where this process may not change the network of
// its namespace. What it then tries would fail one by one, for reasons that do
// not say so.
func mayAdminister(command string) error {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3} // of this thread
	var sets [2]unix.CapUserData                                        // 32 capabilities each
	if err := unix.Capget(&hdr, &sets[0]); err != nil {
		return fmt.Errorf("reading the capabilities of this process: %w", err)
	}
	if sets[0].Effective&(1<<unix.CAP_NET_ADMIN) == 0 {
		return fmt.Errorf("svcproxy %s needs root or CAP_NET_ADMIN: it changes the network of this host", command)
	}
	return nil
}
