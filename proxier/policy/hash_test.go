package policy_test

import (
	"testing"

	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/policy/policytest"
	"svcproxy.dev/svcproxy/source"
)

// The size of a table follows all endpoints of a family, so that one which fails, drains or
// is disabled for a while leaves the slots of the others where they are.
func TestHashCountsAllEndpoints(t *testing.T) {
	svc := policytest.Service(policytest.Endpoints("10.0.0.1", "10.0.0.2 notready", "10.0.0.3 weight=0", "fd00::1"))
	res := policy.Resolve(svc, policy.Conditions{}, policytest.Node(), policy.IPv4)
	if got := res.Pools[0].Hash; got != (policy.Hash{}) {
		t.Errorf("without maglev %+v", got)
	}
	svc.Scheduler, svc.HashOn = source.Maglev, source.ClientIP
	svc.Endpoints[0].Disabled = true
	res = policy.Resolve(svc, policy.Conditions{}, policytest.Node(), policy.IPv4)
	if got, want := res.Pools[0].Hash, (policy.Hash{On: source.ClientIP, Endpoints: 3}); got != want {
		t.Errorf("with maglev %+v, want %+v", got, want)
	}
}
