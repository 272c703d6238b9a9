package daemon

import (
	"context"

	"svcproxy.dev/svcproxy/netutil/conntrack"
	"svcproxy.dev/svcproxy/proxier"
)

// flows is what the Loop needs of connection tracking.
type flows struct{}

func (flows) Prune(ctx context.Context, fam proxier.Family, q proxier.FlowQuery, stale func(proxier.Flow) bool) (int, error) {
	asked := conntrack.Query{Protocol: uint8(q.Protocol), From: q.From, To: q.To, At: q.At}
	return conntrack.Prune(ctx, fam == proxier.IPv6, asked, func(f conntrack.Flow) bool { return stale(proxier.Flow(f)) })
}

func (flows) Challenge(fam proxier.Family, removed []proxier.Flow) error {
	list := make([]conntrack.Flow, len(removed))
	for i, f := range removed {
		list[i] = conntrack.Flow(f)
	}
	return conntrack.Challenge(fam == proxier.IPv6, list)
}
