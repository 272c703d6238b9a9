package daemon

import (
	"context"
	"net/url"

	"svcproxy.dev/svcproxy/cmd/internal/control"
	"svcproxy.dev/svcproxy/proxier/report"
	"svcproxy.dev/svcproxy/source"
)

// addStatus has status answered: all of it, or of some services; a summary; some services alone.
func (r *reporter) addStatus(routes *control.Routes) {
	control.Get(routes, "/v1/status", func(ctx context.Context, query url.Values) (control.Status, error) {
		match, err := matcher(query)
		if err != nil {
			return control.Status{}, err
		}
		return r.status(ctx, match), nil
	})
	control.Get(routes, "/v1/services", func(ctx context.Context, query url.Values) ([]report.ServiceStatus, error) {
		match, err := matcher(query)
		if err != nil {
			return nil, err
		}
		list := report.StatusOf(r.loop.Snapshot(), match).Services
		if match != nil {
			r.addTraffic(ctx, query["name"], list)
		}
		return list, nil
	})
	control.Get(routes, "/v1/summary", func(ctx context.Context, query url.Values) (control.Summary, error) {
		most, err := control.MostOf(query)
		if err != nil {
			return control.Summary{}, err
		}
		return r.summary(ctx, most), nil
	})
}

// matcher returns what accepts the services that are asked for; nil: all.
func matcher(query url.Values) (func(*source.Service) bool, error) {
	which, err := control.SelectionOf(query)
	if err != nil || len(which) == 0 {
		return nil, err
	}
	return func(s *source.Service) bool { return which.Matches(s.Key, s.Labels) }, nil
}

// summary returns what is known in short, with at most so many problems.
func (r *reporter) summary(ctx context.Context, most int) control.Summary {
	snap := r.loop.Snapshot()
	services := report.Summarize(snap, most)
	about := r.about(ctx, services.Families, services.Refusals)
	about.Announced.Addresses = report.Announced(snap, nil)
	s := control.Summarize(about, services, most)
	addresses := 0
	for _, n := range services.Actions {
		addresses += n
	}
	if addresses <= control.MaxListed && services.Services <= control.MaxListed {
		s.Everything = report.StatusOf(snap, nil).Services
	}
	return s
}
