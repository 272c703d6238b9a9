//go:build bench

package loop

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"testing"

	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/policy/policytest"
	"svcproxy.dev/svcproxy/source"
)

// BenchmarkCounts counts 10,000 services of 10 endpoints: each time again, and when nothing
// has changed.
func BenchmarkCounts(b *testing.B) {
	u := source.Unit{ID: source.UnitID{Source: "file", Name: "a"}}
	for i := range 10_000 {
		s := &source.Service{
			Key: source.Key{Namespace: "default", Name: fmt.Sprint("s-", i)}, VIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})},
			Ports: []source.Port{{Protocol: source.TCP, Port: 80, TargetPort: 80}},
		}
		for j := range 10 {
			s.Endpoints = append(s.Endpoints, source.Endpoint{Addr: netip.AddrFrom4([4]byte{192, 168, byte(i), byte(j)}), Ready: true, Weight: 1})
		}
		u.Services = append(u.Services, s)
	}
	l := New(Config{Backends: map[policy.Family]proxier.Backend{policy.IPv4: &kernel{}, policy.IPv6: &kernel{}}, Node: policytest.Node(), Sources: []string{"file"}, SyncTimeout: 1e12, LookInterval: 1e12, Log: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	go l.Run(ctx)
	l.Apply(policytest.Set(u))
	l.Synced("file")
	<-l.Ready()
	for name, change := range map[string]uint64{"changed": 1, "unchanged": 0} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				l.revision.Add(change)
				if n := l.Counts().Services["balance"]; n != 10_000 {
					b.Fatal(n, "services")
				}
			}
		})
	}
}
