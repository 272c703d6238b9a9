package healthz

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/report"
	"svcproxy.dev/svcproxy/source"
)

// Services that are named have their endpoints, also when there are none, for as long as they are named.
func TestNames(t *testing.T) {
	service := func(name string, s source.Service) *source.Service {
		s.Key = source.Key{Namespace: "prod", Name: name}
		return &s
	}
	web := service("web", source.Service{HealthCheck: &source.HealthCheck{}})
	plain, off := service("plain", source.Service{}), service("off", source.Service{Disabled: true})
	m := NewMetrics("v1")
	var named report.Named
	m.WatchCounts(func() Counts { return Counts{Loop: report.Counts{Named: named}} })
	for _, tt := range []struct {
		name  string
		named report.Named
		want  string
	}{
		{"at the start", report.Named{LeftOut: 4}, `
svcproxy_service_endpoints_left_out 4
svcproxy_service_problem{namespace="",problem="all_failed",service=""} 0
svcproxy_service_problem{namespace="",problem="drop",service=""} 0
svcproxy_service_problem{namespace="",problem="in_part",service=""} 0
svcproxy_service_problem{namespace="",problem="reject",service=""} 0
svcproxy_service_problem{namespace="",problem="unserved",service=""} 0
`},
		{"up", report.Named{Services: []report.ServiceCounts{
			{Service: web, Endpoints: report.StateCounts{policy.Up: 2}}, {Service: plain}, {Service: off, Endpoints: report.StateCounts{policy.Disabled: 3}},
		}}, `
svcproxy_service_endpoints{namespace="prod",service="off",state="disabled"} 3
svcproxy_service_endpoints{namespace="prod",service="plain",state="ready"} 0
svcproxy_service_endpoints{namespace="prod",service="web",state="up"} 2
svcproxy_service_endpoints_left_out 0
svcproxy_service_problem{namespace="",problem="all_failed",service=""} 0
svcproxy_service_problem{namespace="",problem="drop",service=""} 0
svcproxy_service_problem{namespace="",problem="in_part",service=""} 0
svcproxy_service_problem{namespace="",problem="reject",service=""} 0
svcproxy_service_problem{namespace="",problem="unserved",service=""} 0
`},
		{"down", report.Named{
			Services: []report.ServiceCounts{{Service: web, Endpoints: report.StateCounts{policy.Down: 1, policy.ZeroWeight: 1}}},
			Problems: []report.ServiceProblem{{Service: web, Problem: "all failed"}}, More: map[string]int{"in part": 7},
		}, `
svcproxy_service_endpoints{namespace="prod",service="web",state="down"} 1
svcproxy_service_endpoints{namespace="prod",service="web",state="up"} 0
svcproxy_service_endpoints{namespace="prod",service="web",state="weight_0"} 1
svcproxy_service_endpoints_left_out 0
svcproxy_service_problem{namespace="",problem="all_failed",service=""} 0
svcproxy_service_problem{namespace="",problem="drop",service=""} 0
svcproxy_service_problem{namespace="",problem="in_part",service=""} 7
svcproxy_service_problem{namespace="",problem="reject",service=""} 0
svcproxy_service_problem{namespace="",problem="unserved",service=""} 0
svcproxy_service_problem{namespace="prod",problem="all_failed",service="web"} 1
`},
		{"without its check", report.Named{Services: []report.ServiceCounts{{Service: service("web", source.Service{}), Endpoints: report.StateCounts{policy.Down: 1, policy.ZeroWeight: 1}}}}, `
svcproxy_service_endpoints{namespace="prod",service="web",state="down"} 1
svcproxy_service_endpoints{namespace="prod",service="web",state="ready"} 0
svcproxy_service_endpoints{namespace="prod",service="web",state="weight_0"} 1
svcproxy_service_endpoints_left_out 0
svcproxy_service_problem{namespace="",problem="all_failed",service=""} 0
svcproxy_service_problem{namespace="",problem="drop",service=""} 0
svcproxy_service_problem{namespace="",problem="in_part",service=""} 0
svcproxy_service_problem{namespace="",problem="reject",service=""} 0
svcproxy_service_problem{namespace="",problem="unserved",service=""} 0
`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			named = tt.named
			for range 2 { // made, and kept
				if got := ofServices(lines(t, m)); got != strings.TrimPrefix(tt.want, "\n") {
					t.Errorf("got\n%swant%s", got, tt.want)
				}
			}
			problems, err := testutil.GatherAndLint(m.registry, "svcproxy_service_endpoints", "svcproxy_service_problem")
			fatal.If(t, err)
			if len(problems) > 0 {
				t.Error(problems)
			}
		})
	}
}

// The labels that are asked for follow those of services, and the settings.
func TestNamesHaveLabels(t *testing.T) {
	m := NewMetrics("v1")
	web := &source.Service{Key: source.Key{Namespace: "prod", Name: "web"}}
	var keys []string
	m.WatchCounts(func() Counts {
		named := report.Named{
			Services: []report.ServiceCounts{{Service: web, Endpoints: report.StateCounts{policy.Ready: 1}}},
			Problems: []report.ServiceProblem{{Service: web, Problem: policy.Reject.String()}},
		}
		return Counts{Loop: report.Counts{Named: named}, Labels: keys}
	})
	for _, tt := range []struct {
		keys   []string
		labels map[string]string
		want   string
	}{
		{nil, nil, `namespace="prod",?="",service="web"`},
		{[]string{"team", "example.com/a-b"}, nil, `label_example_com_a_b="",label_team="",namespace="prod",?="",service="web"`},
		{[]string{"team", "example.com/a-b"}, map[string]string{"team": "x", "tier": "z"}, `label_example_com_a_b="",label_team="x",namespace="prod",?="",service="web"`},
		{[]string{"team", "example.com/a-b"}, map[string]string{"example.com/a-b": "y"}, `label_example_com_a_b="y",label_team="",namespace="prod",?="",service="web"`},
		{[]string{"tier"}, map[string]string{"team": "x", "tier": "z"}, `label_tier="z",namespace="prod",?="",service="web"`},
	} {
		keys = tt.keys
		other := *web
		web, other.Labels = &other, tt.labels
		problem := strings.ReplaceAll(tt.want, `?=""`, `problem="reject"`)
		endpoints, _ := strings.CutSuffix(tt.want, `,?="",service="web"`)
		text := lines(t, m)
		for _, want := range []string{"svcproxy_service_endpoints{" + endpoints + `,service="web",state="ready"} 1`, "svcproxy_service_problem{" + problem + "} 1"} {
			if !strings.Contains(text, want+"\n") {
				t.Errorf("labels %q of %v: no %s in\n%s", tt.keys, tt.labels, want, ofServices(text))
			}
		}
	}
}

// ofServices returns the lines about single services.
func ofServices(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "svcproxy_service_") {
			b.WriteString(line)
		}
	}
	return b.String()
}
