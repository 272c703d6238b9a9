package daemon

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/cmd/internal/modes"
	"svcproxy.dev/svcproxy/cmd/internal/modes/modestest"
	"svcproxy.dev/svcproxy/cmd/internal/modeswitch"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// A half is a backend of one family.
type half struct {
	kernel
	cleaned atomic.Bool
}

func (h *half) Cleanup(context.Context) error { h.cleaned.Store(true); return nil }

func (h *half) failWith(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.fail = err
}

// halves is a mode with a backend for each family.
type halves struct{ v4, v6 half }

func (h *halves) of(name string) modes.Mode {
	return modestest.Stub(name, func(_ context.Context, fam policy.Family, _ modes.OpenConfig) (modes.Backend, error) {
		if fam == policy.IPv4 {
			return &h.v4, nil
		}
		return &h.v6, nil
	})
}

// expectLeftInIPv4 waits until a mode was cleaned up in IPv4, and checks that it was not in IPv6.
func (r *running) expectLeftInIPv4(h *halves) {
	r.t.Helper()
	r.eventually("IPv4 cleaned up", h.v4.cleaned.Load)
	time.Sleep(10 * modeswitch.RetireInterval)
	if h.v6.cleaned.Load() {
		r.t.Error("IPv6 is cleaned up, although the new mode does not hold it")
	}
}

// A family that the new mode cannot hold stays in the former one, which gives up the other.
func TestModeChangesByFamily(t *testing.T) {
	often(t)
	former, next := new(halves), new(halves)
	next.v6.failWith(errors.New("busy"))
	r := launch(t, "http_address = \"\"\nmode = \"nftables\"\n", former.of("nftables"), next.of("ipvs"))
	r.ready()
	r.write("svcproxy.toml", "http_address = \"\"\nmode = \"ipvs\"\n")
	r.expectLeftInIPv4(former)
	const taking = "STATUS=ipvs mode, taking over ipv6 from nftables mode\n"
	r.eventually("told systemd", func() bool { return strings.HasSuffix(r.toldBut("WATCHDOG="), taking) })
	if st := r.status(); st.Settings.Mode != "ipvs" || st.Loop.Families[1].Error == "" {
		t.Errorf("status %+v", st)
	}
	next.v6.failWith(nil)
	r.eventually("all of it removed", func() bool {
		return former.v6.cleaned.Load() && strings.HasSuffix(r.toldBut("WATCHDOG="), "STATUS=ipvs mode\n")
	})
}

// What an earlier run left of a family in another mode stays as long as nothing else
// holds that family.
func TestLeftoversGoByFamily(t *testing.T) {
	often(t)
	left, used := new(halves), new(halves)
	used.v6.failWith(errors.New("busy"))
	r := launch(t, "http_address = \"\"\nmode = \"ipvs\"\n", left.of("nftables"), used.of("ipvs"))
	r.ready()
	r.expectLeftInIPv4(left)
	if strings.Contains(r.said(), "nothing of an earlier run") {
		t.Errorf("log:\n%s", r.log)
	}
	used.v6.failWith(nil)
	r.eventually("all of it removed", func() bool {
		return left.v6.cleaned.Load() && strings.HasSuffix(r.toldBut("WATCHDOG="), "STATUS=ipvs mode\n")
	})
}
