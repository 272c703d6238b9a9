package daemon

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/cmd/internal/modes/modestest"
	"svcproxy.dev/svcproxy/cmd/internal/modeswitch"
)

// A clinging backend can be cleaned up as soon as it may.
type clinging struct {
	kernel
	may   atomic.Bool
	tries atomic.Int32
}

func (c *clinging) Cleanup(context.Context) error {
	c.tries.Add(1)
	if !c.may.Load() {
		return errors.New("busy")
	}
	return nil
}

// often makes the daemon try again often.
func often(t *testing.T) {
	missing, retire := modeswitch.MissingInterval, modeswitch.RetireInterval
	modeswitch.MissingInterval, modeswitch.RetireInterval = 20*time.Millisecond, 20*time.Millisecond
	t.Cleanup(func() { modeswitch.MissingInterval, modeswitch.RetireInterval = missing, retire })
}

// What an earlier run left in another mode is removed as soon as it can be. It does
// not wait for that to be ready, and says when it is done.
func TestLeftoversAreTriedAgain(t *testing.T) {
	often(t)
	left := new(clinging)
	r := launch(t, "http_address = \"\"\nmode = \"iptables\"\n", modestest.Stub("nftables", modestest.Opens(left)))
	r.ready()
	r.eventually("tried again", func() bool { return left.tries.Load() >= 8 }) // both families, four times
	const warning = "cannot remove all objects of an earlier run from the kernel"
	if n := strings.Count(r.said(), warning); n != 1 {
		t.Errorf("warned %d times:\n%s", n, r.log)
	}
	const problem = warning + ": cleaning up nftables mode, ipv4: busy; cleaning up nftables mode, ipv6: busy"
	if w := strings.Join(r.status().Warnings, "\n"); !strings.Contains(w, problem) {
		t.Errorf("status warns of %q", w)
	}
	const removing = "STATUS=iptables mode; removing what an earlier run may have left of others\n"
	if told := r.toldBut("WATCHDOG="); told != "READY=1\n"+removing && told != removing+"READY=1\n" {
		t.Errorf("told systemd:\n%s", told)
	}
	left.may.Store(true)
	r.eventually("removed", func() bool {
		return strings.Contains(r.log.String(), "nothing of an earlier run in another mode is left in the kernel") && strings.HasSuffix(r.toldBut("WATCHDOG="), "STATUS=iptables mode\n")
	})
	if w := strings.Join(r.status().Warnings, "\n"); strings.Contains(w, warning) {
		t.Errorf("status still warns of %q", w)
	}
	n := left.tries.Load()
	time.Sleep(5 * modeswitch.MissingInterval)
	if now := left.tries.Load(); now != n {
		t.Errorf("removed %d times more", now-n)
	}
}

// A mode that cannot be removed after a change is tried again, and systemd hears of it.
func TestFormerModeIsTriedAgain(t *testing.T) {
	often(t)
	former := new(clinging)
	former.may.Store(true)
	r := launch(t, "http_address = \"\"\nmode = \"nftables\"\n", modestest.Stub("nftables", modestest.Opens(former)))
	r.ready()
	former.may.Store(false)
	r.write("svcproxy.toml", "http_address = \"\"\nmode = \"iptables\"\n")
	n := former.tries.Load()
	r.eventually("tried again", func() bool { return former.tries.Load() >= n+8 })
	const warning = "cannot remove all objects of the previous mode from the kernel"
	if n := strings.Count(r.said(), warning); n != 2 {
		t.Errorf("warned %d times, want once for each family:\n%s", n, r.log)
	}
	if w := strings.Join(r.status().Warnings, "\n"); !strings.Contains(w, warning+": nftables mode, ipv4: busy\n"+warning+": nftables mode, ipv6: busy") {
		t.Errorf("status warns of %q", w)
	}
	former.may.Store(true)
	r.eventually("removed", func() bool {
		return strings.Contains(r.log.String(), "removed the objects of the previous mode") && strings.HasSuffix(r.toldBut("WATCHDOG="), "STATUS=iptables mode\n")
	})
	told := r.toldBut("WATCHDOG=")
	if _, after, ok := strings.Cut(told, "STATUS=iptables mode, taking over from nftables mode\n"); !ok || !strings.Contains(after, "STATUS=iptables mode; nftables mode is leaving\n") {
		t.Errorf("told systemd:\n%s", told)
	}
}
