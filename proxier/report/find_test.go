package report

import (
	"fmt"
	"slices"
	"testing"

	"svcproxy.dev/svcproxy/proxier/claims"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/policy/policytest"
	"svcproxy.dev/svcproxy/source"
)

// someSnapshot has services that do well and ones that do not.
func someSnapshot() *Snapshot {
	node, fam := policytest.Node(), Family{Family: policy.IPv4, Known: true}
	snap := &Snapshot{Snapshot: claims.Snapshot{Node: node}}
	add := func(name string, known policy.Conditions, edit ...func(*source.Service)) {
		svc := policytest.Service(edit...)
		svc.Name = name
		s := claims.UnitService{Unit: source.UnitID{Name: name + ".toml"}}
		s.Service, s.Conditions = svc, known
		snap.Services = append(snap.Services, s)
		if r := policy.Resolve(svc, known, node, policy.IPv4); r != nil {
			fam.Resolved = append(fam.Resolved, r)
		}
	}
	add("well", nil, policytest.Endpoints("10.0.0.1"))
	add("empty", nil)
	add("down", policytest.Conditions("10.0.0.1 passed", "10.0.0.2 failed"), policytest.Probed, policytest.Endpoints("10.0.0.1", "10.0.0.2"))
	add("drained", policytest.Conditions("10.0.0.1 passed drained", "10.0.0.2 passed"), policytest.Probed, policytest.Endpoints("10.0.0.1", "10.0.0.2"))
	add("off", nil, func(s *source.Service) { s.Disabled = true })
	snap.Syncs = []Family{fam}
	return snap
}

func TestFind(t *testing.T) {
	snap := someSnapshot()
	for _, tt := range []struct{ state, want string }{
		{"", "[default/down default/drained default/empty default/off default/well]"},
		{Troubled, "[default/down default/empty]"},
		{"reject", "[default/empty]"},
		{"balance", "[default/down default/drained default/well]"},
		{"down", "[default/down]"},
		{"up", "[default/down default/drained]"},
		{"draining", "[default/drained]"},
		{"disabled", "[default/off]"},
		{"unknown", "[]"},
	} {
		if got := fmt.Sprint(Find(snap, Filter{State: tt.state})); got != tt.want {
			t.Errorf("state %q: %s, want %s", tt.state, got, tt.want)
		}
		if tt.state != "" && tt.state != "unknown" && !slices.Contains(FilterStates(), tt.state) {
			t.Errorf("%q is not among %q", tt.state, FilterStates())
		}
	}
	not := func(svc *source.Service) bool { return svc.Name != "down" }
	if got := fmt.Sprint(Find(snap, Filter{not, Troubled})); got != "[default/empty]" {
		t.Errorf("of some: %s", got)
	}
}
