//go:build netns

package nftables_test

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/nftables"
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
				h.Must(h.Backend.AssumeFlowtable("nosuch0"))
				h.nft(script)
				next(h, events, script)
				h.World.Host.LocalInterfaces = []string{"no/name"}
				if err := h.Backend.Sync(context.Background(), h.World.State, &proxier.Delta{}); err == nil {
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
