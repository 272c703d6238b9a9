package daemon

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"svcproxy/proxier"
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
	nftables := mode{name: "nftables", open: func(context.Context, proxier.Family, site) (backend, error) {
		return &sharer{table: common}, nil
	}}
	r := launch(t, "http_address = \"\"\n", nftables, mode{name: "ipvs", open: opens(next)})
	r.ready()
	r.write("svcproxy.toml", "http_address = \"\"\nmode = \"ipvs\"\n")
	r.eventually("tried", func() bool { return r.status().Loop.Families[0].Error != "" })
	r.write("svcproxy.toml", "http_address = \"\"\n")
	r.eventually("back", func() bool {
		return strings.Contains(r.log.String(), "removed what the former mode made") && strings.HasSuffix(r.toldBut("WATCHDOG="), "STATUS=nftables mode\n")
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
		mode{name: "nftables", open: opens(good)}, mode{name: "ipvs", open: opens(broken)})
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
