package modeswitch

import (
	"context"
	"testing"

	"svcproxy.dev/svcproxy/cmd/internal/modes"
	"svcproxy.dev/svcproxy/cmd/internal/modes/modestest"
	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// A patient backend has connections that go on for some time.
type patient struct {
	idle
	left                       int // calls of Retire until nothing is left
	retired, removed, cleanups int
}

func (p *patient) Retire(context.Context) (bool, error) {
	p.retired++
	p.left--
	return p.left <= 0, nil
}
func (p *patient) RemoveRules(context.Context) error { p.removed++; return nil }
func (p *patient) Cleanup(context.Context) error     { p.cleanups++; return nil }

// leaving returns a mode that another one has taken IPv4 over from, and IPv6 not.
func leaving(mode string, b modes.Backend) *Active {
	am := newActiveMode(modestest.Stub(mode, nil))
	am.Backends[policy.IPv4], am.leaving[policy.IPv4] = b, true
	return am
}

// Ipvs mode leaves when its connections have ended. Its chains and sets go at
// once, unless the next mode has taken them over, which it has not without the family.
func TestLeaveWaitsForConnections(t *testing.T) {
	for _, tt := range []struct {
		next    *Active
		removed int
	}{
		{leaving("nftables", new(idle)), 1},
		{leaving("iptables", new(idle)), 0},
		{&Active{Mode: modestest.Stub("iptables", nil)}, 1},
	} {
		p := &patient{left: 3}
		am := leaving("ipvs", p)
		calls := 0
		for ; !am.isGone(); calls++ {
			fatal.If(t, am.leave(t.Context(), policy.IPv4, tt.next))
		}
		if calls != 3 || p.retired != 3 || p.removed != tt.removed || p.cleanups != 0 {
			t.Errorf("to %s: %d calls, %+v", tt.next.Name, calls, p)
		}
	}
}

// What iptables mode made is ipvs mode's by the names, and nothing of nftables mode is.
func TestLeaveSharesRules(t *testing.T) {
	for _, tt := range []struct {
		from, to string
		cleanups int
	}{{"iptables", "ipvs", 0}, {"iptables", "nftables", 1}, {"nftables", "ipvs", 1}} {
		b := &counting{}
		am := leaving(tt.from, b)
		if err := am.leave(t.Context(), policy.IPv4, leaving(tt.to, new(idle))); err != nil || !am.isGone() || b.cleanups != tt.cleanups {
			t.Errorf("%s to %s: gone %v, %v, %d cleanups", tt.from, tt.to, am.isGone(), err, b.cleanups)
		}
	}
}

type counting struct {
	idle
	cleanups int
}

func (p *counting) Cleanup(context.Context) error { p.cleanups++; return nil }
