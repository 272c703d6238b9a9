package peers

import (
	"strings"
	"testing"
	"time"
)

func TestKubernetesPeersPlan(t *testing.T) {
	env := map[string]string{envSizes: "20x3, 1000x10,20x3", envRounds: "2", envBound: "90s", envRested: "0", envDir: "d"}
	p, err := planFrom(func(name string) string { return env[name] })
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range modes {
		if got := p.sizes[m]; len(got) != 2 || got[0] != (size{20, 3}) || got[1] != (size{1000, 10}) {
			t.Errorf("sizes of %s: %v", m, got)
		}
	}
	if p.roundsOf(usual) != 2 || p.roundsOf(size{20_000, 5}) != 2 || p.restedOf(size{20, 3}) != 0 || p.bound != 90*time.Second || p.rested != 0 || p.dir != "d" || p.whole {
		t.Errorf("plan: %+v", p)
	}
	if p, err := planFrom(func(name string) string { return map[string]string{envRested: "5"}[name] }); err != nil || !p.whole || p.restedOf(usual) != 5 || p.restedOf(size{1000, 10}) != 0 {
		t.Errorf("more rounds with memory at rest are not the whole plan: %+v, %v", p, err)
	}
	for name, want := range map[string]string{envRounds: "../../../dist/bench", envRested: "../../../docs/bench"} {
		if p, err := planFrom(func(asked string) string { return map[string]string{name: "1"}[asked] }); err != nil || p.dir != want {
			t.Errorf("%s: results are kept in %s, want %s: %v", name, p.dir, want, err)
		}
	}
}

func TestKubernetesPeersPlanFaults(t *testing.T) {
	for _, c := range [][2]string{
		{envSizes, "10000"}, {envSizes, "2x10"}, {envSizes, "1000x0"}, {envSizes, "1000x51"}, {envSizes, "300000x1"}, {envSizes, "200000x11"}, {envSizes, "x"},
		{envRounds, "-1"}, {envRounds, "101"}, {envRounds, "five"}, {envBound, "10"}, {envBound, "0s"}, {envBound, "25h"}, {envRested, "x"},
	} {
		_, err := planFrom(func(name string) string { return map[string]string{c[0]: c[1]}[name] })
		if err == nil || !strings.Contains(err.Error(), c[0]) {
			t.Errorf("%s=%s: %v", c[0], c[1], err)
		}
	}
}

// Every service listens on an address of its own in the range of VIPs, and has endpoints
// where a host answers, also those that replace others.
func TestKubernetesPeersAddresses(t *testing.T) {
	for _, s := range []size{{largest.services, 10}, {40_000, largest.endpoints}} {
		all := makeServices(s)
		for _, i := range []int{0, s.services / 2, s.services - 1} {
			if !vips.Contains(all[i].address().Addr()) {
				t.Errorf("%s: VIP %s is not in %s", s, all[i].address(), vips)
			}
			was := all[i].endpoints[s.endpoints-1]
			if !endpointRange.Contains(was) {
				t.Errorf("%s: endpoint %s is not in %s", s, was, endpointRange)
			}
			for spare, r := range spareRanges {
				all[i].move(s.endpoints, spare)
				for _, a := range all[i].endpoints {
					if !r.Contains(a) {
						t.Errorf("%s: endpoint %s is not in %s", s, a, r)
					}
				}
			}
		}
	}
}
