package report

import (
	"slices"
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/policy/policytest"
	"svcproxy.dev/svcproxy/source"
)

// Each endpoint has one word for how it is.
func TestShownStates(t *testing.T) {
	type edits = []func(*source.Service)
	one, two, three := "10.0.0.1", "10.0.0.2", "10.0.0.3"
	local := func(s *source.Service) { s.InternalTrafficPolicy = source.Local }
	tests := []struct {
		name  string
		svc   edits
		known policy.Conditions
		want  string
	}{
		{"unchecked", edits{policytest.Endpoints(one, two+" notready", three+" weight=0")}, nil, "ready, not ready, weight 0"},
		{"checked", edits{policytest.Probed, policytest.Endpoints(one, two, three)}, policytest.Conditions(one+" passed", two+" failed"), "up, down, checking"},
		{"unchecked any more", edits{policytest.Endpoints(one)}, policytest.Conditions(one + " failed"), "ready"},
		{"drained", edits{policytest.Probed, policytest.Endpoints(one, two)}, policytest.Conditions(one+" failed drained", two+" passed drained"), "draining, draining"},
		{"slow start", edits{policytest.Slowly, policytest.Endpoints(one, two)}, policytest.Conditions(one + " share=4"), "slow start, ready"},
		{"a slow start that is no more asked for", edits{policytest.Endpoints(one)}, policytest.Conditions(one + " share=4"), "ready"},
		{"backup", edits{policytest.Endpoints(one, two+" tier=1", three+" tier=2")}, nil, "ready, backup, backup"},
		{"a backup that is needed", edits{policytest.MinUp(2), policytest.Endpoints(one, two+" tier=1", three+" tier=2")}, nil, "ready, ready, backup"},
		{"a backup of one that fails", edits{policytest.Probed, policytest.Endpoints(one, two+" tier=1", three+" tier=2")},
			policytest.Conditions(one+" failed", two+" passed", three+" passed"), "down, up, backup"},
		{"a backup of one that may follow it", edits{policytest.Probed, policytest.Endpoints(one, two+" tier=1")}, policytest.Conditions(one+" failing returning", two+" passed returning"), "down, backup"},
		{"a backup that fails", edits{policytest.Probed, policytest.Endpoints(one, two+" tier=1")}, policytest.Conditions(one+" passed", two+" failed"), "up, down"},
		{"a backup of the other family", edits{policytest.Endpoints(one, "fd00::1 tier=1")}, nil, "ready, ready"},
		{"a backup of another node", edits{local, policytest.Endpoints(one+" @there", two+" @here tier=1", three+" @there tier=1")}, nil, "ready, backup, backup"},
		{"disabled", edits{policytest.Endpoints(one, two+" disabled")}, nil, "ready, disabled"},
		{"a disabled service", edits{func(s *source.Service) { s.Disabled = true }, policytest.Endpoints(one, two+" weight=0")}, nil, "disabled, disabled"},
	}
	for _, tt := range tests {
		svc := policytest.Service(tt.svc...)
		u := usedService{Subject: policy.Subject{Service: svc, Conditions: tt.known}}
		var got []string
		for _, e := range u.endpointStatuses(policytest.Node(), nil) {
			got = append(got, e.State)
		}
		if text := strings.Join(got, ", "); text != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, text, tt.want)
		}
	}
}

// A frontend that not everybody may use says so.
func TestStatusOfRestricted(t *testing.T) {
	svc := policytest.Service(policytest.Endpoints("10.0.0.1"))
	svc.SourceRanges = policytest.Prefixes("10.1.0.0/16")
	r := inFamily{policy.Resolve(svc, nil, policytest.Node(), policy.IPv4), &Family{Known: true}}
	u := usedService{Subject: policy.Subject{Service: svc}}
	for _, f := range r.Frontends {
		if st := u.frontendStatus(r, f, policytest.Node()); !st.Restricted || st.Action != "balance" {
			t.Errorf("%v: %+v", f.Key, st)
		}
	}
}

// An endpoint's share is that of its weight among those that are used.
func TestShares(t *testing.T) {
	svc := policytest.Service(policytest.Probed, policytest.Endpoints("10.0.0.1", "10.0.0.2 weight=2", "10.0.0.3", "fd00::1"))
	known, node := policytest.Conditions("10.0.0.1 passed", "10.0.0.2 passed", "10.0.0.3 failed", "fd00::1 passed"), policytest.Node()
	u := usedService{Subject: policy.Subject{Service: svc, Conditions: known}}
	for _, fam := range []policy.Family{policy.IPv4, policy.IPv6} {
		u.families = append(u.families, inFamily{policy.Resolve(svc, known, node, fam), &Family{Family: fam, Known: true}})
	}
	var got []float64
	for _, e := range u.endpointStatuses(node, nil) {
		got = append(got, e.Gets)
	}
	if want := []float64{33.3, 66.7, 0, 0}; !slices.Equal(got, want) { // it has no IPv6 address
		t.Errorf("shares %v, want %v", got, want)
	}
}
