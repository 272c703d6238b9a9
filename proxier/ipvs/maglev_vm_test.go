//go:build vm

package ipvs

import (
	"testing"

	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

func (h *host) hashed(vip int, on source.HashOn, endpoints ...int) *policy.Resolved {
	res := h.service(on.String(), vip, source.TCP, endpoints...)
	res.Pools[0].Hash = policy.Hash{On: on, Endpoints: 3}
	return res
}

// Scheduler maglev is mh. Its table keeps the slots of an endpoint that drains: clients of
// these are not refused meanwhile, and all others stay where they are.
func TestMaglevKeepsSlotsOfDrains(t *testing.T) {
	everywhere(t, func(h *host) {
		h.listen(3)
		h.Put(h.hashed(1, source.ClientIPPort, 0, 1, 2))
		h.Put(h.hashed(2, source.ClientIP, 0, 1, 2))
		h.wantState()
		h.settled()

		_, mine := h.mustDial(h.vip(2))
		reached := map[int]bool{}
		for range 40 {
			if _, n := h.mustDial(h.vip(2)); n != mine {
				t.Fatalf("endpoint %d, and before %d, of one client", n, mine)
			}
			_, n := h.mustDial(h.vip(1))
			reached[n] = true
		}
		if len(reached) != 3 {
			t.Errorf("40 ports of a client reached endpoints %v, want 3", reached)
		}

		h.Put(h.hashed(1, source.ClientIPPort, 1, 2))
		for range 40 {
			if _, n := h.mustDial(h.vip(1)); n == 0 {
				t.Fatal("a new connection reached the endpoint that left")
			}
		}
	})
}
