package healthz

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"svcproxy.dev/svcproxy/proxier/claims"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/policy/policytest"
	"svcproxy.dev/svcproxy/proxier/report"
)

// What /metrics costs with 10,000 services of 4 endpoints, by how many are named, where something has changed since the
// last scrape (counted) and where not (scraped). size is that of the answer in bytes, without compression.
func BenchmarkMetrics(b *testing.B) {
	s := &report.Snapshot{Snapshot: claims.Snapshot{Node: policytest.Node()}, Syncs: []report.Family{{Family: policy.IPv4, Known: true}}}
	for i := range 10_000 {
		svc := policytest.Service(policytest.Endpoints(
			fmt.Sprintf("10.1.%d.%d", i/250, i%250), fmt.Sprintf("10.2.%d.%d", i/250, i%250), fmt.Sprintf("10.3.%d.%d", i/250, i%250), fmt.Sprintf("10.4.%d.%d", i/250, i%250)))
		svc.Name = fmt.Sprintf("service-%d", i*7919%10_000)
		s.Services = append(s.Services, claims.UnitService{Subject: policy.Subject{Service: svc}})
		s.Syncs[0].Resolved = append(s.Syncs[0].Resolved, policy.Resolve(svc, nil, s.Node, policy.IPv4))
	}
	for _, named := range []int{0, 1000, 10_000} {
		b.Run(fmt.Sprintf("counted/named=%d", named), func(b *testing.B) {
			var before report.Named
			b.ReportAllocs()
			for b.Loop() {
				before = report.CountsOf(s, named, before).Named
			}
		})
		b.Run(fmt.Sprintf("scraped/named=%d", named), func(b *testing.B) {
			m, counts := NewMetrics("v1"), Counts{Loop: report.CountsOf(s, named, report.Named{})}
			m.Follow(policy.IPv4, policy.IPv6)
			m.WatchCounts(func() Counts { return counts }, policy.IPv4, policy.IPv6)
			h, size := m.Handler(), 0
			b.ReportAllocs()
			for b.Loop() {
				w := httptest.NewRecorder()
				h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
				size = w.Body.Len()
			}
			b.ReportMetric(float64(size), "size")
		})
	}
}
