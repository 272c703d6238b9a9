package daemon

import (
	"context"
	"errors"
	"log/slog"
	"net/url"
	"time"

	"svcproxy.dev/svcproxy/cmd/internal/control"
	"svcproxy.dev/svcproxy/cmd/internal/top"
	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/netutil/conntrack"
	"svcproxy.dev/svcproxy/netutil/sysctl"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/traffic"
	"svcproxy.dev/svcproxy/source"
)

// topAge is how old what top is told may be: a little less than its shortest interval.
const topAge = 900 * time.Millisecond

// newTraffic returns what counts connections of services, as far as settings want.
func newTraffic(loop *proxier.Loop, log *slog.Logger, s configs.Settings) *traffic.Collector {
	c := traffic.NewCollector(tracking{}, loop.Serving, log)
	c.Want(wantedTraffic(s))
	return c
}

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
		q.Labels = r.loop.Labels()
	}
	return r.traffic.Report(ctx, q, topAge)
}

// trafficTime is how long status waits for what is counted.
const trafficTime = 200 * time.Millisecond

// addTraffic adds what is counted of services to their status, where it is always counted and at hand.
func (r *reporter) addTraffic(ctx context.Context, which control.Selection, list []proxier.ServiceStatus) {
	ctx, cancel := context.WithTimeout(ctx, trafficTime)
	defer cancel()
	q := traffic.Query{Names: which, Endpoints: true, Limit: traffic.MaxLimit}
	if which.Labels() {
		q.Labels = r.loop.Labels()
	}
	report, err := r.traffic.Counted(ctx, q)
	if err == nil && !report.Time.IsZero() {
		report.AddTo(list)
	}
}

// tracking is connection tracking as a Collector needs it.
type tracking struct{}

func (tracking) Connections(ctx context.Context, fam proxier.Family, each func(traffic.Connection)) error {
	return conntrack.Translated(ctx, fam == proxier.IPv6, func(c conntrack.Counted) { each(connection(c)) })
}

func (tracking) CountsPackets() bool {
	on, err := sysctl.Get("net/netfilter/nf_conntrack_acct")
	return err == nil && on == "1"
}

// Follow says what is in the way where the kernel would be silent.
func (tracking) Follow(ends bool) (traffic.Follower, error) {
	if on, err := sysctl.Get("net/netfilter/nf_conntrack_events"); err == nil && on == "0" {
		return nil, errors.New("net.netfilter.nf_conntrack_events is 0; set it to 1")
	}
	f, err := conntrack.Follow(ends)
	if err != nil {
		return nil, err
	}
	return follower{f}, nil
}

type follower struct{ *conntrack.Follower }

func (f follower) Run(ctx context.Context, each func(traffic.Event), lost func()) error {
	return f.Follower.Run(ctx, func(e conntrack.Event) {
		each(traffic.Event{Connection: connection(e.Counted), Begun: e.Begun})
	}, lost)
}

func connection(c conntrack.Counted) traffic.Connection {
	at := proxier.FrontendAddr{Protocol: source.Protocol(c.Protocol), AddrPort: c.Dst}
	return traffic.Connection{Pair: proxier.Pair{FrontendAddr: at, Target: c.Reply}, Ended: c.Ended, Packets: c.Packets, Bytes: c.Bytes}
}
