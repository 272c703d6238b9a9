package healthz

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

// Each type and outcome is a histogram, as of the time of each scrape.
func TestWatchChecks(t *testing.T) {
	m := NewMetrics("v1")
	good := CheckAnswers{Type: "tcp", Outcome: "passed", Buckets: map[float64]uint64{0.001: 0, 0.002: 0}}
	m.WatchChecks(func() []CheckAnswers { return []CheckAnswers{good, {Type: "http", Outcome: "failed"}} })
	good.Count, good.Sum, good.Buckets = 3, 1.5, map[float64]uint64{0.001: 1, 0.002: 2}
	const want = `
# HELP svcproxy_endpoint_check_duration_seconds Time of a health check of an endpoint, by its type and what came of it.
# TYPE svcproxy_endpoint_check_duration_seconds histogram
svcproxy_endpoint_check_duration_seconds_bucket{outcome="failed",type="http",le="+Inf"} 0
svcproxy_endpoint_check_duration_seconds_sum{outcome="failed",type="http"} 0
svcproxy_endpoint_check_duration_seconds_count{outcome="failed",type="http"} 0
svcproxy_endpoint_check_duration_seconds_bucket{outcome="passed",type="tcp",le="0.001"} 1
svcproxy_endpoint_check_duration_seconds_bucket{outcome="passed",type="tcp",le="0.002"} 2
svcproxy_endpoint_check_duration_seconds_bucket{outcome="passed",type="tcp",le="+Inf"} 3
svcproxy_endpoint_check_duration_seconds_sum{outcome="passed",type="tcp"} 1.5
svcproxy_endpoint_check_duration_seconds_count{outcome="passed",type="tcp"} 3
`
	if err := testutil.GatherAndCompare(m.registry, strings.NewReader(want), "svcproxy_endpoint_check_duration_seconds"); err != nil {
		t.Error(err)
	}
}
