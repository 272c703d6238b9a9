package main

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// Who may not change the network is told so, in place of what fails because of it.
// CAP_NET_ADMIN is all that it takes, and nothing else will do.
func TestMissingRightsAreNamed(t *testing.T) {
	done := make(chan struct{})
	go func() { // not unlocked: the thread ends with what it gave up
		defer close(done)
		runtime.LockOSThread()
		var sets [2]unix.CapUserData
		hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		if err := unix.Capget(&hdr, &sets[0]); err != nil {
			t.Error(err)
			return
		}
		const admin = 1 << unix.CAP_NET_ADMIN
		all := sets[0].Effective
		for _, tt := range []struct {
			name      string
			effective uint32
			may       bool
		}{
			{"all that this user has", all, all&admin != 0},
			{"CAP_NET_ADMIN alone", all & admin, all&admin != 0},
			{"all else", all &^ admin, false},
			{"nothing", 0, false},
		} {
			sets[0].Effective = tt.effective
			if err := unix.Capset(&hdr, &sets[0]); err != nil {
				t.Error(err)
				return
			}
			want := "svcproxy run needs root or CAP_NET_ADMIN: it changes the network of this host"
			if tt.may {
				want = ""
			}
			got := ""
			if err := mayAdminister("run"); err != nil {
				got = err.Error()
			}
			if got != want {
				t.Errorf("with %s: %q, want %q", tt.name, got, want)
			}
		}
	}()
	<-done
}
