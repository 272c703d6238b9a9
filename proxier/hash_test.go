package proxier

import (
	"testing"

	"svcproxy.dev/svcproxy/source"
)

// The size of a table follows all endpoints of a family, so that one which fails, drains or
// is disabled for a while leaves the slots of the others where they are.
func TestHashCountsAllEndpoints(t *testing.T) {
	svc := testService(testEndpoints("10.0.0.1", "10.0.0.2 notready", "10.0.0.3 weight=0", "fd00::1"))
	res := Resolve(svc, Conditions{}, testNode(), IPv4)
	if got := res.Pools[0].Hash; got != (Hash{}) {
		t.Errorf("without maglev %+v", got)
	}
	svc.Scheduler, svc.HashOn = source.Maglev, source.ClientIP
	svc.Endpoints[0].Disabled = true
	res = Resolve(svc, Conditions{}, testNode(), IPv4)
	if got, want := res.Pools[0].Hash, (Hash{On: source.ClientIP, Endpoints: 3}); got != want {
		t.Errorf("with maglev %+v, want %+v", got, want)
	}
}
