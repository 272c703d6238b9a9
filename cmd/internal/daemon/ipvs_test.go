package daemon

import (
	"context"
	"testing"

	"svcproxy/proxier"
)

// A patient backend has connections that go on for some time.
type patient struct {
	kernel
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

// Ipvs mode leaves when its connections have ended. Its chains and sets go at
// once, unless the next mode has taken them over.
func TestLeave(t *testing.T) {
	for next, removed := range map[string]int{"nftables": 1, "iptables": 0} {
		p := &patient{left: 3}
		in := &instance{mode: "ipvs", backends: map[proxier.Family]backend{proxier.IPv4: p}}
		calls := 0
		for done := false; !done; calls++ {
			var err error
			if done, err = in.leave(t.Context(), next); err != nil {
				t.Fatal(err)
			}
		}
		if calls != 3 || p.retired != 3 || p.removed != removed || p.cleanups != 0 {
			t.Errorf("to %s: %d calls, %+v", next, calls, p)
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
		in := &instance{mode: tt.from, backends: map[proxier.Family]backend{proxier.IPv4: b}}
		if done, err := in.leave(t.Context(), tt.to); !done || err != nil || b.cleanups != tt.cleanups {
			t.Errorf("%s to %s: done %v, %v, %d cleanups", tt.from, tt.to, done, err, b.cleanups)
		}
	}
}

type counting struct {
	kernel
	cleanups int
}

func (p *counting) Cleanup(context.Context) error { p.cleanups++; return nil }
