package loop

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/policy/policytest"
)

// A family that other backends leave out is told of, after all that its syncs were told of.
func TestLoopReportsADroppedFamilyLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var told []string
		note := func(what string) {
			mu.Lock()
			defer mu.Unlock()
			told = append(told, what)
		}
		k, v6 := &kernel{}, &kernel{fail: errors.New("no")}
		l := start(t, k, func(c *Config) {
			c.Backends[policy.IPv6] = v6
			observe(c).synced = func(r SyncResult) {
				if r.Family == policy.IPv6 && r.Err != nil {
					note("failed")
				}
			}
			observe(c).dropped = func(fam policy.Family) { note("dropped " + fam.String()) }
		})
		l.Apply(policytest.Set(policytest.File("a", "x 10.96.0.1:80")))
		l.Synced("file")
		synctest.Wait()
		l.SetBackends(map[policy.Family]proxier.Backend{policy.IPv4: k})
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		if want := []string{"failed", "dropped ipv6"}; !slices.Equal(told, want) {
			t.Errorf("told of %q, want %q", told, want)
		}
	})
}
