package daemon

import (
	"errors"
	"strings"
	"syscall"
	"testing"

	"svcproxy.dev/svcproxy/cmd/internal/modes"
	"svcproxy.dev/svcproxy/cmd/internal/modes/modestest"
	"svcproxy.dev/svcproxy/configs"
)

func TestReloadReadsFilesAgain(t *testing.T) {
	r := launch(t, "http_address = \"\"\n")
	r.ready()
	_, _, before := r.kernel.seen()
	r.write("svcproxy.toml", "http_address = \"\"\nzone = \"new\"\n")
	r.reload <- syscall.SIGHUP
	r.eventually("told systemd", func() bool {
		return strings.HasSuffix(r.toldBut("WATCHDOG=", "STATUS="), "RELOADING=1\nREADY=1\n")
	})
	if zone := r.status().Settings.Zone; zone != "new" {
		t.Errorf("zone %q right after the reload", zone)
	}
	r.eventually("compared with the kernel", func() bool { _, _, n := r.kernel.seen(); return n > before })
}

// systemd is told READY=1 for the first complete sync, and not for a reload before it.
func TestReloadBeforeTheFirstSync(t *testing.T) {
	k := &kernel{fail: errors.New("broken")}
	r := launch(t, "http_address = \"\"\nmode = \"nftables\"\n", modestest.Stub("nftables", modestest.Opens(k)))
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

// A reload verifies the host for the settings that it has read, not for those of the start.
func TestReloadVerifiesForItsSettings(t *testing.T) {
	m := modestest.Stub("nftables", modestest.Opens(new(kernel)))
	m.Needs = func(s configs.Settings) (n modes.Needs) {
		if s.Masquerade == "all" {
			n.Sysctls = []modes.Sysctl{{Name: "kernel/ostype", Value: "Other"}}
		}
		return n
	}
	r := launch(t, "http_address = \"\"\nmode = \"nftables\"\nmasquerade = \"all\"\n", m)
	r.ready()
	warned := func() int { return strings.Count(r.said(), "kernel/ostype is Linux") }
	if n := warned(); n != 1 {
		t.Fatalf("%d warnings at start, want 1", n)
	}
	r.write("svcproxy.toml", "http_address = \"\"\nmode = \"nftables\"\n")
	for range 2 { // that the second is taken says that the first is done
		r.reload <- syscall.SIGHUP
	}
	if n := warned(); n != 1 {
		t.Errorf("%d warnings after a reload with other settings, want 1:\n%s", n, r.log)
	}
}
