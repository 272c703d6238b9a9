package loop

import (
	"errors"
	"maps"
	"net/netip"
	"testing"
	"testing/synctest"

	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/report"
	"svcproxy.dev/svcproxy/source"
)

// Counts are those of what Status lists.
func TestLoopCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v4 := &kernel{}
		l := start(t, v4)
		service := func(name, vip string, endpoints ...source.Endpoint) *source.Service {
			return &source.Service{
				Key: source.Key{Namespace: "default", Name: name}, VIPs: []netip.Addr{netip.MustParseAddr(vip)},
				Ports: []source.Port{{Protocol: source.TCP, Port: 80, TargetPort: 80}}, Endpoints: endpoints,
			}
		}
		at := func(addr, node string) source.Endpoint {
			return source.Endpoint{Addr: netip.MustParseAddr(addr), Ready: true, Serving: true, Weight: 1}.With(source.Extras{Node: node})
		}
		light, leaving, dead := at("192.0.2.2", ""), at("192.0.2.3", ""), at("192.0.2.4", "")
		light.Weight, leaving.Ready, leaving.Terminating, dead.Ready, dead.Serving = 0, false, true, false, false
		local := service("local", "10.96.0.3", at("192.0.2.1", "elsewhere"))
		local.InternalTrafficPolicy = source.Local
		headless := service("headless", "10.96.0.4")
		headless.VIPs = nil
		u := source.Unit{ID: source.UnitID{Source: "file", Name: "a"}, Services: []*source.Service{
			service("web", "10.96.0.1", at("192.0.2.1", ""), light, leaving, dead),
			service("empty", "10.96.0.2"), local, headless,
		}}
		l.Apply(source.Changes{Set: []source.Unit{u}})
		synctest.Wait()
		wants := func(when string, services map[string]int, seen, pending report.ChangeCounts) {
			t.Helper()
			c := l.Counts()
			if !maps.Equal(c.Services, services) {
				t.Errorf("%s: services %v, want %v", when, c.Services, services)
			}
			if c.Seen != seen || c.Pending != pending {
				t.Errorf("%s: seen %+v, pending %+v, want %+v, %+v", when, c.Seen, c.Pending, seen, pending)
			}
		}
		wants("before the first sync", map[string]int{"pending": 3, "none": 1}, report.ChangeCounts{Services: 4, Endpoints: 2}, report.ChangeCounts{Services: 4, Endpoints: 2})
		l.Synced("file")
		synctest.Wait()
		wants("synced", map[string]int{"balance": 1, "reject": 1, "drop": 1, "none": 1}, report.ChangeCounts{Services: 4, Endpoints: 2}, report.ChangeCounts{})
		c := l.Counts()
		if want := map[string]int{
			"ready": 2, "weight 0": 1, "terminating": 1, "not ready": 1, "checking": 0, "down": 0, "draining": 0, "disabled": 0,
			"up": 0, "slow start": 0, "backup": 0,
		}; !maps.Equal(c.Endpoints, want) {
			t.Errorf("endpoints %v, want %v", c.Endpoints, want)
		}
		if want := map[policy.Family]report.NoLocal{policy.IPv4: {Internal: 1}}; !maps.Equal(c.NoLocal, want) {
			t.Errorf("without a local endpoint %v, want %v", c.NoLocal, want)
		}
		if n := len(c.Named.Services) + len(c.Named.Problems); n > 0 {
			t.Errorf("%d services are named, and nobody asked", n)
		}
		l.SetNamed(2)
		if n := l.Counts().Named; len(n.Services) != 2 || len(n.Problems) != 2 || n.Problems[0].Name != "empty" {
			t.Errorf("named %+v", n)
		}
		v4.failWith(errors.New("no"))
		more := u
		more.Services = append([]*source.Service{service("web", "10.96.0.1", at("192.0.2.1", ""))}, u.Services[1:]...)
		l.Apply(source.Changes{Set: []source.Unit{more}})
		synctest.Wait()
		wants("failing", map[string]int{"pending": 1, "reject": 1, "drop": 1, "none": 1}, report.ChangeCounts{Services: 4, Endpoints: 3}, report.ChangeCounts{Services: 0, Endpoints: 1})
	})
}
