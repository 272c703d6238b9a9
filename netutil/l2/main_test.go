package l2

import (
	"errors"
	"runtime"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Who may not open a socket is told what it takes.
func TestErrorNamesMissingRights(t *testing.T) {
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
		sets[0].Effective &^= 1 << unix.CAP_NET_RAW
		if err := unix.Capset(&hdr, &sets[0]); err != nil {
			t.Error(err)
			return
		}
		k := new(kernel)
		defer k.close()
		for fam, err := range map[string]error{"IPv4": k.openARP(), "IPv6": k.openND()} {
			if err == nil || !errors.Is(err, unix.EPERM) || !strings.Contains(err.Error(), "CAP_NET_RAW") {
				t.Errorf("%s: %v", fam, err)
			}
		}
	}()
	<-done
}

func TestExplainSocketErrors(t *testing.T) {
	err := explain(unix.EAFNOSUPPORT, "AF_PACKET")
	if !errors.Is(err, unix.EAFNOSUPPORT) || !strings.Contains(err.Error(), "RestrictAddressFamilies=AF_PACKET") {
		t.Errorf("got %v", err)
	}
	if err := explain(unix.EMFILE, "AF_PACKET"); err != unix.EMFILE {
		t.Errorf("got %v", err)
	}
}
