//go:build vm

package ipvs

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/proxier/backendtest"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// What all rules need is proved at once, and named, or another mode would not be tried.
func TestMissingNeedIsNamed(t *testing.T) {
	everywhere(t, func(h *host) {
		for extension, name := range map[string]string{"xt_ipvs": "ipvs", "xt_connmark": "connmark"} {
			backendtest.WithoutExtension(h.TB, extension)
			b, err := New(h.Context(), h.Family, h.opts)
			if err == nil {
				b.Close()
			}
			if err == nil || !strings.Contains(err.Error(), "this host lacks "+name+", which ") {
				h.Errorf("without %s: got %v", extension, err)
			}
		}
	})
}

// sticky returns a service whose node port has rules that need the match recent, and
// whose VIP has none: local sources reach all endpoints, others a local one.
func (h *host) sticky() *policy.Resolved {
	s := backendtest.Service{Name: "sticky", Protocol: source.TCP, Affinity: time.Hour}
	s.Targets = []policy.Target{policy.NewTarget(h.endpoint(0), 1), policy.NewTarget(h.endpoint(1), 1)}
	s.Local = s.Targets[:1]
	cluster, local := s.Pools()
	everyone := backendtest.Route(cluster, policy.NoOne, policy.Reject)
	return s.Resolve(
		&policy.Frontend{Key: policy.FrontendKey{Addr: h.vip(7).Addr(), Port: h.vip(7).Port()}, Outside: everyone, FromLocal: everyone},
		&policy.Frontend{
			Key:     policy.FrontendKey{Addr: h.Family.Unspecified(), Port: 30707, Kind: policy.NodePort},
			Outside: backendtest.Route(local, policy.NoOne, policy.Drop), FromLocal: everyone,
		})
}

// A service whose rules need a match which the host lacks is set aside as far as
// rules balance it, by name: it stops no other.
func TestMissingMatchSetsItsServiceAside(t *testing.T) {
	everywhere(t, func(h *host) {
		backendtest.WithoutExtension(h.TB, "xt_recent")
		h.Restart()
		h.listen(2)
		res := h.sticky()
		h.World.Put(res.Key, res)
		h.unserved(nil, 1)
		err := h.Backend.Sync(h.Context(), h.World.State, nil)
		if want := "service default/sticky needs the match recent, which this host lacks: "; !strings.Contains(fmt.Sprint(err), want) {
			h.Errorf("got %v, want %s", err, want)
		}
		later := h.service("web", 1, source.TCP, 1)
		h.unserved(h.World.Put(later.Key, later), 1)
		h.mustDial(h.vip(1))
		h.mustDial(h.vip(7))
		for _, a := range h.World.Host.NodePortAddrs {
			if _, _, err := h.dial(netip.AddrPortFrom(a, 30707)); err == nil {
				h.Errorf("node port on %v: connected, want refused", a)
			}
		}
		if changes, err := h.Backend.Plan(h.Context(), h.World.State); err != nil || len(changes) > 0 {
			h.Errorf("still to change: %v, %v", changes, err)
		}
		os.Unsetenv("XTABLES_LIBDIR") // the match comes
		h.Sync(nil)
		h.mustDial(netip.AddrPortFrom(h.World.Host.NodePortAddrs[0], 30707))
		h.settled()
	})
}
