package daemon

import (
	"context"
	"net/url"
	"time"

	"svcproxy.dev/svcproxy/cmd/internal/control"
	"svcproxy.dev/svcproxy/cmd/internal/top"
	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/proxier/report"
	"svcproxy.dev/svcproxy/proxier/traffic"
)

// topAge is how old what top is told may be: a little less than its shortest interval.
const topAge = 900 * time.Millisecond

// wantedTraffic returns what settings want of it.
func wantedTraffic(s configs.Settings) traffic.Wanted {
	return traffic.Wanted{Always: s.Metrics.Traffic, Services: s.Metrics.MaxServices}
}

// answerTop answers which services have the most traffic.
func (r *reporter) answerTop(ctx context.Context, values url.Values) (traffic.Report, error) {
	q, err := top.QueryOf(values)
	if err != nil {
		return traffic.Report{}, err
	}
	if q.Names.Labels() {
		q.Labels = report.Labels(r.loop.Snapshot())
	}
	return r.traffic.Report(ctx, q, topAge)
}

// trafficTime is how long status waits for what is counted.
const trafficTime = 200 * time.Millisecond

// addTraffic adds what is counted of services to their status, where it is always counted and at hand.
func (r *reporter) addTraffic(ctx context.Context, which control.Selection, list []report.ServiceStatus) {
	ctx, cancel := context.WithTimeout(ctx, trafficTime)
	defer cancel()
	q := traffic.Query{Names: which, Endpoints: true, Limit: traffic.MaxLimit}
	if which.Labels() {
		q.Labels = report.Labels(r.loop.Snapshot())
	}
	report, err := r.traffic.Counted(ctx, q)
	if err == nil && !report.Time.IsZero() {
		report.AddTo(list)
	}
}
