//go:build netns

package nftables_test

import (
	"context"
	"strings"
	"testing"
	"time"

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
