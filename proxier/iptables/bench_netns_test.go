//go:build netns

package iptables_test

import (
	"context"
	"os"
	"strconv"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/netutil/netnstest"
	"svcproxy.dev/svcproxy/proxier/backendtest"
	"svcproxy.dev/svcproxy/proxier/iptables"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// BenchmarkLoad measures, in a namespace of its own: the first sync, a change of
// one endpoint, a new service, a comparison with the kernel that finds nothing to
// do, and a change that is made during a look at the kernel, and that look.
// SVCPROXY_BENCH_SERVICES says how many services there are, of ten endpoints each.
func BenchmarkLoad(b *testing.B) {
	n, err := strconv.Atoi(os.Getenv("SVCPROXY_BENCH_SERVICES"))
	if err != nil {
		n = 1000
	}
	for _, variant := range []string{"nft", "legacy"} {
		b.Run(variant, func(b *testing.B) { benchmarkLoad(b, variant, n) })
	}
}

func benchmarkLoad(b *testing.B, variant string, n int) {
	w := backendtest.NewWorld(policy.IPv4)
	for i := range n {
		res := backendtest.Web(policy.IPv4, i, 10)
		w.Put(res.Key, res)
	}
	extra := backendtest.Web(policy.IPv4, n, 10)
	steps := []struct {
		name  string
		delta func() *policy.Delta
	}{
		{"first", func() *policy.Delta { return nil }},
		{"endpoint", func() *policy.Delta {
			fewer := backendtest.Web(policy.IPv4, n/2, 9)
			return w.Put(fewer.Key, fewer)
		}},
		{"service", func() *policy.Delta { return w.Put(extra.Key, extra) }},
		{"gone", func() *policy.Delta { return w.Put(source.Key{Namespace: "default", Name: "web-1"}, nil) }},
		{"resync", func() *policy.Delta { return nil }},
	}
	for range b.N {
		backend := newHost(b, variant, policy.IPv4).Backend
		for _, s := range steps {
			delta := s.delta()
			start := time.Now()
			fatal.If(b, backend.Sync(context.Background(), w.State, delta))
			b.ReportMetric(float64(time.Since(start).Microseconds())/1000, s.name+"-ms")
		}
		besideLook(b, backend, w, n)
	}
	b.ReportMetric(0, "ns/op")
}

func besideLook(b *testing.B, backend *iptables.Backend, w *backendtest.World, n int) {
	looked := make(chan time.Duration)
	go netnstest.Here(b, func() {
		start := time.Now()
		if damaged, err := backend.Look(context.Background()); err != nil || damaged {
			b.Errorf("look: %v, %v", damaged, err)
		}
		looked <- time.Since(start)
	})()
	time.Sleep(20 * time.Millisecond)
	res := backendtest.Web(policy.IPv4, n/3, 5)
	start := time.Now()
	fatal.If(b, backend.Sync(context.Background(), w.State, w.Put(res.Key, res)))
	b.ReportMetric(float64(time.Since(start).Microseconds())/1000, "beside-look-ms")
	b.ReportMetric(float64((<-looked).Microseconds())/1000, "look-ms")
}
