//go:build netns

package nftables_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	nfnetlink "svcproxy.dev/svcproxy/netutil/nft"
	"svcproxy.dev/svcproxy/proxier/nftables"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// Services are served where there is none of the interfaces of the flow table, and that is told.
func TestFlowtableWithoutInterfaces(t *testing.T) {
	everywhere(t, func(h *host) {
		res := h.service("web", 10, time.Hour, 1, 2)
		h.Put(res)
		whole := h.dump()
		h.Open = func() (*nftables.Backend, error) {
			return nftables.New(context.Background(), h.Family, nftables.Options{Flowtable: []string{"nosuch0", "nosuch1"}, Offload: true})
		}
		h.Restart()
		h.Sync(nil)
		if now := h.dump(); now != whole {
			t.Errorf("the table changes:\n%s\nwant\n%s", now, whole)
		}
		h.Settled("the first sync")
		const want = "[nftables] flowtable: there is no interface nosuch0, nosuch1; packets take the usual way"
		if w := h.Backend.Warnings(); len(w) != 1 || !strings.HasPrefix(w[0], want) {
			t.Errorf("warnings %q, want %q", w, want)
		}
	})
}

// Chains come back first also where the kernel refuses the flow table, as its interface has gone.
func TestRevivesWithoutFlowtable(t *testing.T) {
	for name, script := range map[string]string{
		"all": "flush ruleset", "table": "delete table TABLE", "chains": "flush chain TABLE prerouting\nflush chain TABLE output",
	} {
		t.Run(name, func(t *testing.T) {
			everywhere(t, func(h *host) {
				h.Put(h.service("web", 10, time.Hour, 1, 2))
				shape, events := h.shape(), h.watch()
				h.Backend.AssumeFlowtable("nosuch0")
				h.nft(script)
				next(h, events, script)
				h.World.Host.LocalInterfaces = []string{"no/name"}
				if err := h.Backend.Sync(context.Background(), h.World.State, &policy.Delta{}); err == nil {
					h.Error("a sync with an impossible interface succeeds")
				}
				if !strings.Contains(h.everything(), h.table()+" {") {
					h.Fatal("the table is not back before the repair")
				}
				back := h.shape()
				maps.DeleteFunc(shape, func(line string, _ int) bool {
					return back[line] > 0 || strings.HasSuffix(line, "goto refused") // which waits for elements
				})
				if len(shape) > 0 {
					h.Errorf("before the repair these are not back: %q", slices.Sorted(maps.Keys(shape)))
				}
				h.World.Host.LocalInterfaces = nil
				h.Sync(nil)
				h.Settled("repair")
			})
		})
	}
}

// A change that is refused for another reason is not blamed on the flow table.
func TestFlowtableIsNotBlamed(t *testing.T) {
	everywhere(t, func(h *host) {
		h.Open = func() (*nftables.Backend, error) {
			return nftables.New(context.Background(), h.Family, nftables.Options{Flowtable: []string{"lo"}})
		}
		h.Restart()
		h.Put(h.service("web", 10, time.Hour, 1, 2))
		before, events := h.Backend.Warnings(), h.watch()
		h.Backend.AssumeFlowtable("lo")
		other, err := nfnetlink.Dial()
		h.Must(err)
		defer other.Close()
		h.Must(other.Commit(h.ownedBy()))
		next(h, events, "a table that is owned")
		err = h.Backend.Sync(context.Background(), h.World.State, &policy.Delta{})
		if !errors.Is(err, unix.EPERM) {
			h.Errorf("a sync of a table that another program owns: %v", err)
		}
		if now := h.Backend.Warnings(); !slices.Equal(now, before) {
			h.Errorf("warnings %q, want %q as before", now, before)
		}
	})
}

// ownedBy replaces our table by one that belongs to who commits it.
func (h *host) ownedBy() *nfnetlink.Batch {
	number := byte(unix.NFPROTO_IPV4)
	if h.Family == policy.IPv6 {
		number = unix.NFPROTO_IPV6
	}
	b := nfnetlink.NewBatch(nfnetlink.Table{Family: number, Name: "svcproxy"})
	b.DeleteTable()
	b.AddNewTable("", true)
	return b
}
