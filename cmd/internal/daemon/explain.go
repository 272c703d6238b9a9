package daemon

import (
	"context"
	"fmt"
	"net/url"
	"time"

	"svcproxy.dev/svcproxy/cmd/internal/check"
	"svcproxy.dev/svcproxy/cmd/internal/control"
	"svcproxy.dev/svcproxy/cmd/internal/explain"
	"svcproxy.dev/svcproxy/cmd/internal/modeswitch"
	"svcproxy.dev/svcproxy/cmd/internal/sources"
	"svcproxy.dev/svcproxy/proxier/report"
)

// explainTime is how long the host may take to tell of its rules and routes.
const explainTime = 20 * time.Second

// addExplain has the control socket say what becomes of a packet.
func (r *reporter) addExplain(routes *control.Routes) {
	busy := make(chan struct{}, 1) // one question at a time: each may read all rules of the host
	control.Get(routes, explain.Path, func(ctx context.Context, query url.Values) (*explain.Report, error) {
		q, err := explain.FromQuery(query)
		if err != nil {
			return nil, err
		}
		ctx, cancel := context.WithTimeout(ctx, explainTime)
		defer cancel()
		select {
		case busy <- struct{}{}:
			defer func() { <-busy }()
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting for another question: %w", ctx.Err())
		}
		mode := r.mode.Current().Mode
		now := r.loop.Snapshot()
		w := explain.NewWorld(now.Snapshot, mode)
		w.Places, w.Details = r.rules.EndpointPlaces, now.Details
		w.Announced = report.Announced(now, nil)
		for _, s := range r.sources {
			w.AddFaults(s.Status())
		}
		return explain.Explain(ctx, w, q, explain.ThisHost{Mode: mode})
	})
}

// Explain says what becomes of a packet where no daemon runs, but would hold what is held.
func Explain(ctx context.Context, held check.Held, q explain.Question) (*explain.Report, error) {
	if err := held.Look(); err != nil {
		return nil, err
	}
	mode, err := modeswitch.WouldUse(ctx, held.Settings)
	if err != nil {
		return nil, err
	}
	w := explain.NewWorld(held.Snapshot, mode)
	w.Places = sources.Rules(held.Settings).EndpointPlaces
	for _, f := range held.Faults {
		if !f.Warning {
			w.Unread = append(w.Unread, f.String())
		}
	}
	return explain.Explain(ctx, w, q, explain.ThisHost{Mode: mode})
}
