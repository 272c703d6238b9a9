//go:build netns

package sysctl_test

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/netutil/sysctl"
)

func TestSet(t *testing.T) {
	// Not unlocked: the thread ends with its namespace when the test does.
	runtime.LockOSThread()
	fatal.If(t, unix.Unshare(unix.CLONE_NEWNET))
	for _, v := range []string{"1", "0", "1"} {
		fatal.If(t, sysctl.Set("net/ipv4/ip_forward", v))
		if got, err := sysctl.Get("net/ipv4/ip_forward"); got != v || err != nil {
			t.Errorf("after Set %s: Get = %q, %v", v, got, err)
		}
	}
	want := `setting sysctl net/ipv4/ip_forward to "x" (it is "1"): invalid argument`
	if err := sysctl.Set("net/ipv4/ip_forward", "x"); err == nil || err.Error() != want {
		t.Errorf("Set x error\n got: %v\nwant: %s", err, want)
	}
}
