package loop

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/policy/policytest"
	"svcproxy.dev/svcproxy/source"
)

// checked is a file of one service with a health check port, and with endpoints of this node.
func checked(name string, port uint16, endpoints ...string) source.Unit {
	u := policytest.File(name, fmt.Sprintf("%s 10.96.0.%d:80", name, name[0]))
	s := u.Services[0]
	s.ExternalIPs, s.VIPs = s.VIPs, nil
	s.ExternalTrafficPolicy, s.HealthCheckNodePort = source.Local, port
	for _, e := range endpoints {
		s.Endpoints = append(s.Endpoints, policytest.Endpoint(e).With(source.Extras{Node: policytest.Node().Name}))
	}
	return u
}

// What must wait until the kernel has it is the first endpoint of a family.
func TestRoseIsTheFirstEndpointOfAFamily(t *testing.T) {
	for _, tt := range []struct {
		from, to policy.PerFamily
		want     bool
	}{
		{policy.PerFamily{IPv4: 0, IPv6: 0}, policy.PerFamily{IPv4: 1, IPv6: 0}, true},
		{policy.PerFamily{IPv4: 0, IPv6: 0}, policy.PerFamily{IPv4: 0, IPv6: 1}, true},
		{policy.PerFamily{IPv4: 1, IPv6: 0}, policy.PerFamily{IPv4: 1, IPv6: 1}, true},
		{policy.PerFamily{IPv4: 0, IPv6: 1}, policy.PerFamily{IPv4: 1, IPv6: 1}, true},
		{policy.PerFamily{IPv4: 0, IPv6: 1}, policy.PerFamily{IPv4: 1, IPv6: 0}, true},
		{policy.PerFamily{IPv4: 1, IPv6: 1}, policy.PerFamily{IPv4: 2, IPv6: 2}, false},
		{policy.PerFamily{IPv4: 1, IPv6: 1}, policy.PerFamily{IPv4: 0, IPv6: 0}, false},
		{policy.PerFamily{IPv4: 0, IPv6: 0}, policy.PerFamily{IPv4: 0, IPv6: 0}, false},
	} {
		if got := tt.to.Rose(tt.from); got != tt.want {
			t.Errorf("from %v to %v: %v, want %v", tt.from, tt.to, got, tt.want)
		}
	}
}

// While a rise waits, a family has what was told of it, or less where that has left.
func TestHealthWhileARiseWaits(t *testing.T) {
	key := source.Key{Namespace: "default", Name: "a"}
	for _, tt := range []struct{ told, is, want policy.PerFamily }{
		{policy.PerFamily{IPv4: 1, IPv6: 0}, policy.PerFamily{IPv4: 2, IPv6: 1}, policy.PerFamily{IPv4: 1, IPv6: 0}},
		{policy.PerFamily{IPv4: 0, IPv6: 3}, policy.PerFamily{IPv4: 1, IPv6: 2}, policy.PerFamily{IPv4: 0, IPv6: 2}},
		{policy.PerFamily{IPv4: 3, IPv6: 0}, policy.PerFamily{IPv4: 2, IPv6: 1}, policy.PerFamily{IPv4: 2, IPv6: 0}},
	} {
		h := nodeHealths{
			checks: map[source.Key]NodeHealth{key: {Key: key, Port: 1, LocalEndpoints: tt.is}},
			told:   map[source.Key]NodeHealth{key: {Key: key, Port: 1, LocalEndpoints: tt.told}},
			rises:  map[source.Key]uint64{key: 1},
		}
		if got := h.now()[key].LocalEndpoints; got != tt.want {
			t.Errorf("told %v, is %v: now %v, want %v", tt.told, tt.is, got, tt.want)
		}
	}
}

// Health checks tell of no endpoint before the kernel sends to it, whatever else is
// in the kernel already, and at once of one that has left.
func TestHealthIsWhatTheKernelHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, told := &kernel{}, atomic.Value{}
		l := start(t, k, func(c *Config) {
			observe(c).nodeHealth = func(list []NodeHealth) {
				var out []string
				for _, h := range list {
					out = append(out, fmt.Sprintf("%s:%d=%d", h.Key.Name, h.Port, h.LocalEndpoints.IPv4))
				}
				told.Store(strings.Join(out, " "))
			}
		})
		wants := func(want string) {
			t.Helper()
			synctest.Wait()
			if got := told.Load(); got != want {
				t.Errorf("told %q, want %q", got, want)
			}
		}
		l.Apply(policytest.Set(checked("a", 32001), checked("b", 32002), checked("c", 32003, "10.0.0.9")))
		l.Synced("file")
		wants("a:32001=0 b:32002=0 c:32003=1")

		k.mu.Lock()
		k.took = 10 * time.Second
		k.mu.Unlock()
		l.Apply(policytest.Set(checked("a", 32001, "10.0.0.2"))) // is synced at once
		time.Sleep(time.Second)
		l.Apply(policytest.Set(checked("b", 32002, "10.0.0.3"))) // in the next sync
		l.Apply(policytest.Set(checked("d", 32004, "10.0.0.4")))
		wants("a:32001=0 b:32002=0 c:32003=1")
		l.Apply(policytest.Set(checked("c", 32003))) // leaves
		wants("a:32001=0 b:32002=0 c:32003=0")
		time.Sleep(9*time.Second + 500*time.Millisecond)
		wants("a:32001=1 b:32002=0 c:32003=0")
		l.Apply(policytest.Set(checked("b", 32002, "10.0.0.3", "10.0.0.5"))) // in the sync after it: it rises in this one
		time.Sleep(10 * time.Second)
		wants("a:32001=1 b:32002=2 c:32003=0 d:32004=1")
		time.Sleep(30 * time.Second)

		l.Apply(policytest.Set(checked("a", 32009, "10.0.0.2", "10.0.0.7"))) // another port; it alone would be told at once
		l.Apply(policytest.Set(checked("a", 32010, "10.0.0.2", "10.0.0.7"), checked("e", 32001, "10.0.0.6")))
		wants("a:32001=1 b:32002=2 c:32003=0 d:32004=1")
		time.Sleep(30 * time.Second)
		wants("a:32010=2 b:32002=2 c:32003=0 d:32004=1 e:32001=1")

		l.Apply(policytest.Set(checked("a", 32011, "10.0.0.2"), checked("f", 32010, "10.0.0.8"))) // is synced at once
		time.Sleep(time.Second)
		l.Apply(policytest.Set(checked("a", 32012, "10.0.0.2", "10.0.0.7"))) // in the next sync: until then its port is f's
		time.Sleep(9*time.Second + 500*time.Millisecond)
		wants("b:32002=2 c:32003=0 d:32004=1 e:32001=1 f:32010=1")
		time.Sleep(30 * time.Second)
		wants("a:32012=2 b:32002=2 c:32003=0 d:32004=1 e:32001=1 f:32010=1")
	})
}

// What falls is told also while nothing can be synced; what goes, too.
func TestHealthFallsWhileSyncsFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, told := &kernel{}, atomic.Value{}
		l := start(t, k, func(c *Config) {
			observe(c).nodeHealth = func(list []NodeHealth) {
				ports := ""
				for _, h := range list {
					ports += fmt.Sprintf("%d=%d ", h.Port, h.LocalEndpoints.IPv4)
				}
				told.Store(ports)
			}
		})
		l.Apply(policytest.Set(checked("a", 32001, "10.0.0.2"), checked("b", 32002, "10.0.0.3")))
		l.Synced("file")
		synctest.Wait()
		k.failWith(errors.New("no"))
		l.FullSync()
		time.Sleep(time.Minute)
		l.Apply(policytest.Set(checked("a", 32001)))
		l.Apply(policytest.Gone("b"))
		l.Apply(policytest.Set(checked("c", 32003, "10.0.0.4")))
		synctest.Wait()
		if got, want := told.Load(), "32001=0 "; got != want {
			t.Errorf("told %q, want %q", got, want)
		}
	})
}
