package daemon

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/cmd/internal/modes"
	"svcproxy.dev/svcproxy/cmd/internal/modes/modestest"
	"svcproxy.dev/svcproxy/cmd/internal/modeswitch"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// A table is what all instances of a mode have in common, as they do in the kernel.
type table struct{ removed atomic.Int32 }

// A sharer is an instance's backend of a table.
type sharer struct {
	kernel
	table *table
}

func (s *sharer) Cleanup(context.Context) error {
	s.table.removed.Add(1)
	return nil
}

// Who goes back to auto while another mode cannot take over keeps what auto took.
func TestBackToAutoDuringAChange(t *testing.T) {
	often(t)
	common, next := new(table), &kernel{fail: errors.New("busy")}
	nftables := modestest.Stub("nftables", func(context.Context, policy.Family, modes.OpenConfig) (modes.Backend, error) {
		return &sharer{table: common}, nil
	})
	r := launch(t, "http_address = \"\"\n", nftables, modestest.Stub("ipvs", modestest.Opens(next)))
	r.ready()
	r.write("svcproxy.toml", "http_address = \"\"\nmode = \"ipvs\"\n")
	r.eventually("tried", func() bool { return r.status().Loop.Families[0].Error != "" })
	r.write("svcproxy.toml", "http_address = \"\"\n")
	r.eventually("back", func() bool {
		return strings.Contains(r.log.String(), "removed the objects of the previous mode") && strings.HasSuffix(r.toldBut("WATCHDOG="), "STATUS=nftables mode\n")
	})
	if n := common.removed.Load(); n > 0 {
		t.Errorf("the table in use was removed %d times; log:\n%s", n, r.log)
	}
}

// A mode in which nothing works can be left before the first sync.
func TestModeChangesBeforeTheFirstSync(t *testing.T) {
	often(t)
	broken, good := &kernel{fail: errors.New("broken")}, new(kernel)
	r := launch(t, "http_address = \"\"\nmode = \"ipvs\"\n",
		modestest.Stub("nftables", modestest.Opens(good)), modestest.Stub("ipvs", modestest.Opens(broken)))
	r.kernel.set(func(k *kernel) { k.names = []string{"left by an earlier run"} })
	r.eventually("tried", func() bool { return strings.Contains(r.log.String(), "sync failed") })
	r.write("svcproxy.toml", "http_address = \"\"\nmode = \"nftables\"\n")
	r.ready()
	if names, _, _ := good.seen(); names != "default/web" {
		t.Errorf("the new mode holds %q", names)
	}
	r.eventually("all else removed", func() bool {
		left, _, _ := r.kernel.seen()
		return left == "" && strings.HasSuffix(r.toldBut("WATCHDOG=", "READY=1"), "STATUS=nftables mode\n")
	})
}

// launchWithout runs a daemon in iptables mode on a host that cannot have nftables
// mode. Want asks for a mode, and warned reports whether status says that there is none.
func launchWithout(t *testing.T, missing *kernel) (r *running, want func(mode string), warned func() bool) {
	missing.none = errors.New("no nft")
	m := modestest.Stub("nftables", missing.open)
	m.Remove = func(context.Context, policy.Family, modes.OpenConfig) error { return nil }
	r = launch(t, "http_address = \"\"\nmode = \"iptables\"\n", m)
	r.ready()
	want = func(mode string) { r.write("svcproxy.toml", "http_address = \"\"\nmode = \""+mode+"\"\n") }
	warned = func() bool { return strings.Contains(strings.Join(r.status().Warnings, "\n"), "no nft") }
	return r, want, warned
}

// A mode that could not be opened is forgotten when another is wanted, and a reload tries
// the wanted one again.
func TestModeThatCannotBeOpened(t *testing.T) {
	missing := new(kernel)
	r, want, warned := launchWithout(t, missing)
	want("nftables")
	r.eventually("warned of", warned)
	want("iptables")
	r.eventually("forgotten", func() bool { return !warned() })
	want("nftables")
	r.eventually("warned of again", warned)
	missing.set(func(k *kernel) { k.none = nil })
	r.reload <- syscall.SIGHUP
	r.eventually("had", func() bool { return r.status().Settings.Mode == "nftables" && !warned() })
}

// Nobody has to ask for it, and the log tells of it once.
func TestModeThatCannotBeOpenedIsTriedAgain(t *testing.T) {
	often(t)
	missing := new(kernel)
	r, want, warned := launchWithout(t, missing)
	want("nftables")
	r.eventually("warned of", warned)
	time.Sleep(10 * modeswitch.MissingInterval)
	missing.set(func(k *kernel) { k.none = nil })
	r.eventually("had", func() bool { return r.status().Settings.Mode == "nftables" && !warned() })
	if n := strings.Count(r.said(), "cannot switch mode"); n != 1 {
		t.Errorf("told %d times:\n%s", n, r.log)
	}
}
