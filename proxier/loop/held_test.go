package loop

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/policy/policytest"
	"svcproxy.dev/svcproxy/source"
)

// Held returns when the kernel holds a change, and not before.
func TestHeldReturnsOnceTheKernelHoldsAChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &kernel{took: 3 * time.Second}
		about := knower{make(chan *source.Service, 9), make(chan policy.Conditions, 9)}
		about.known <- policytest.Conditions("10.0.0.1 passed", "10.0.0.2 passed")
		l := start(t, k, func(c *Config) { c.Conditions = about })
		ctx, cancel := context.WithTimeoutCause(t.Context(), 10*time.Second, errors.New("it takes too long"))
		defer cancel()
		svc := policytest.Service(policytest.Probed, policytest.Endpoints("10.0.0.1", "10.0.0.2"))
		l.Apply(source.Changes{Set: []source.Unit{{ID: source.UnitID{Source: "file", Name: "a"}, Services: []*source.Service{svc}}}})
		if err := l.Held(ctx, policy.IPv4); err == nil || !strings.Contains(err.Error(), "on its way to the kernel, ipv4: it takes too long") {
			t.Errorf("with sources that are not read: %v", err)
		}
		l.Synced("file")
		begin := time.Now()
		if err := l.Held(t.Context(), policy.IPv4); err != nil || time.Since(begin) < 3*time.Second || time.Since(begin) > 4*time.Second {
			t.Errorf("the first sync: %v after %v", err, time.Since(begin))
		}
		begin = time.Now()
		about.known <- policytest.Conditions("10.0.0.1 failed", "10.0.0.2 passed")
		l.Reconsider(svc.Key)
		err := l.Held(t.Context(), 0)
		if got := fmt.Sprint(k.services[svc.Key].Pools[0].Targets); err != nil || time.Since(begin) < 3*time.Second || got != "[10.0.0.2:8080]" {
			t.Errorf("a change: %v after %v, and the kernel has %s", err, time.Since(begin), got)
		}
	})
}

// Where syncs fail, Held says so.
func TestHeldReportsFailingSyncs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &kernel{}
		l := start(t, k)
		l.Apply(policytest.Set(policytest.File("a", "x 10.96.0.1:80")))
		l.Synced("file")
		synctest.Wait()
		full := errors.New("the table is full")
		k.failWith(full)
		l.Apply(policytest.Set(policytest.File("b", "y 10.96.0.2:80")))
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if err := l.Held(ctx, policy.IPv6); err != nil {
			t.Errorf("a family that is not in use: %v", err)
		}
		if err := l.Held(ctx, policy.IPv4); !errors.Is(err, full) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		k.failWith(nil)
		if err := l.Held(t.Context(), policy.IPv4); err != nil {
			t.Errorf("when they work again: %v", err)
		}
	})
}
