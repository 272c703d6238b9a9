//go:build netns

package nftables_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"svcproxy/proxier"
	"svcproxy/proxier/filter/filtertest"
)

// The first sync of many services, one that finds nothing to do, one that reads
// all of it, and a change of one endpoint.
func BenchmarkSync(b *testing.B) {
	for _, services := range []int{1_000, 10_000, 100_000} {
		b.Run(fmt.Sprint(services), func(b *testing.B) {
			enterNamespace(b)
			h := &host{TB: b, fam: proxier.IPv4, world: filtertest.NewWorld(proxier.IPv4), backend: newBackend(b, proxier.IPv4)}
			for i := range services {
				res := filtertest.Web(h.fam, i, 10)
				h.world.Services[res.Key] = res
			}
			took := map[string]time.Duration{}
			timed := func(name string, do func()) {
				start := time.Now()
				do()
				took[name] = time.Since(start)
			}
			timed("ms-first", func() { h.sync(nil) })
			timed("ms-resync", func() { h.sync(nil) })
			h.backend = newBackend(b, h.fam)
			timed("ms-restart", func() { h.sync(nil) })
			pick := seeded(1)
			var changes []time.Duration
			for b.Loop() {
				n := pick(services)
				delta := h.world.Put(filtertest.Web(h.fam, n, 1).Key, filtertest.Web(h.fam, n, 9+pick(3)))
				start := time.Now()
				h.sync(delta)
				changes = append(changes, time.Since(start))
			}
			slices.Sort(changes)
			b.ReportMetric(float64(changes[len(changes)/2].Nanoseconds())/1000, "µs-change-p50")
			for name, d := range took {
				b.ReportMetric(float64(d.Microseconds())/1000, name)
			}
			if err := h.backend.Cleanup(context.Background()); err != nil {
				b.Fatal(err)
			}
		})
	}
}
