package daemon

import (
	"errors"
	"strings"
	"syscall"
	"testing"
)

// systemd is told READY=1 for the first complete sync, and not for a reload before it.
func TestReloadBeforeTheFirstSync(t *testing.T) {
	k := &kernel{fail: errors.New("broken")}
	r := launch(t, "http_address = \"\"\nmode = \"nftables\"\n", mode{name: "nftables", open: opens(k)})
	for range 2 { // that the second is taken says that the first is done
		r.reload <- syscall.SIGHUP
	}
	if told := r.toldBut("WATCHDOG=", "STATUS="); told != "" {
		t.Errorf("before the first sync systemd was told:\n%s", told)
	}
	k.mu.Lock()
	k.fail = nil
	k.mu.Unlock()
	r.ready()
	if n := strings.Count(r.told.String(), "READY=1"); n != 1 {
		t.Errorf("systemd was told %d times that svcproxy is ready", n)
	}
}
