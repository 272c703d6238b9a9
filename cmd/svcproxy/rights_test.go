package main

import (
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// Who may not change the network is told so, in place of what fails because of it.
func TestRights(t *testing.T) {
	done := make(chan struct{})
	go func() { // not unlocked: the thread ends with what it gave up
		defer close(done)
		runtime.LockOSThread()
		if err := mayAdminister("run"); (err == nil) != (os.Geteuid() == 0) {
			t.Errorf("as user %d: %v", os.Geteuid(), err)
		}
		none, hdr := [2]unix.CapUserData{}, unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		if err := unix.Capset(&hdr, &none[0]); err != nil {
			t.Error(err)
			return
		}
		const want = "svcproxy run needs root or CAP_NET_ADMIN: it changes the network of this host"
		if err := mayAdminister("run"); err == nil || err.Error() != want {
			t.Errorf("without capabilities: %v, want %s", err, want)
		}
	}()
	<-done
}
