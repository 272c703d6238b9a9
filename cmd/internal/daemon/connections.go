package daemon

import (
	"context"
	"errors"
	"net/netip"

	"svcproxy.dev/svcproxy/netutil/challenge"
	"svcproxy.dev/svcproxy/netutil/conntrack"
	"svcproxy.dev/svcproxy/netutil/sysctl"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/flows"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/traffic"
	"svcproxy.dev/svcproxy/source"
)

// connections is connection tracking as the Loop, a plan, drains and a Collector of traffic need it.
type connections struct{}

func (connections) Prune(ctx context.Context, fam policy.Family, q flows.Query, judge func(flows.Flow) flows.Verdict) (int, error) {
	asked := conntrack.Query{Protocol: uint8(q.Protocol), From: q.From, To: q.To, At: q.At}
	return conntrack.Prune(ctx, fam == policy.IPv6, asked, func(f conntrack.Flow) conntrack.Verdict {
		return verdicts[judge(flows.Flow(f))]
	})
}

var verdicts = [...]conntrack.Verdict{
	flows.Keep: conntrack.Keep, flows.Remove: conntrack.Remove,
	flows.Move: conntrack.Move, flows.Reopen: conntrack.Reopen,
}

func (connections) Challenge(fam policy.Family, removed []flows.Flow) error {
	list := make([]challenge.Connection, len(removed))
	for i, f := range removed {
		list[i] = challenge.Connection{Client: f.Src, Server: f.Dst}
	}
	return challenge.Send(fam == policy.IPv6, list)
}

func (connections) Established(ctx context.Context, fam policy.Family, visit func(source.Protocol, netip.AddrPort, netip.AddrPort)) error {
	return conntrack.List(ctx, fam == policy.IPv6, conntrack.Filter{}, func(c *conntrack.Connection) error {
		if c.Established {
			visit(source.Protocol(c.Protocol), c.Dst, c.Reply)
		}
		return nil
	})
}

// Open lists connections of a family that have been answered and have not ended, and go to an address, or, invalid, to
// any other than they were sent to: where to, and where they were sent. One of TCP or SCTP that one side only has closed is among
// them, and those of IPVS.
func (connections) Open(ctx context.Context, fam policy.Family, to netip.Addr, visit func(netip.Addr, proxier.FrontendAddr)) error {
	f := conntrack.Filter{Reply: netip.AddrPortFrom(to, 0)}
	return conntrack.List(ctx, fam == policy.IPv6, f, func(c *conntrack.Connection) error {
		if c.Replied && !c.Ended && c.Dst != c.Reply {
			visit(c.Reply.Addr(), proxier.FrontendAddr{Protocol: source.Protocol(c.Protocol), AddrPort: c.Dst})
		}
		return nil
	})
}

func (connections) Connections(ctx context.Context, fam policy.Family, each func(traffic.Connection)) error {
	return conntrack.List(ctx, fam == policy.IPv6, conntrack.Filter{Translated: true}, func(c *conntrack.Connection) error {
		each(connection(c))
		return nil
	})
}

func (connections) CountsPackets() bool {
	on, err := sysctl.Get("net/netfilter/nf_conntrack_acct")
	return err == nil && on == "1"
}

// Follow says what is in the way where the kernel would be silent.
func (connections) Follow(ends bool) (func(context.Context, func(traffic.Connection), func()) error, error) {
	if on, err := sysctl.Get("net/netfilter/nf_conntrack_events"); err == nil && on == "0" {
		return nil, errors.New("net.netfilter.nf_conntrack_events is 0; set it to 1")
	}
	f, err := conntrack.Follow(ends)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, each func(traffic.Connection), lost func()) error {
		return f.Run(ctx, func(e conntrack.Event) {
			c := connection(&e.Connection)
			c.Begun = e.Begun
			each(c)
		}, lost)
	}, nil
}

func connection(c *conntrack.Connection) traffic.Connection {
	at := proxier.FrontendAddr{Protocol: source.Protocol(c.Protocol), AddrPort: c.Dst}
	return traffic.Connection{Pair: proxier.Pair{FrontendAddr: at, Target: c.Reply}, Ended: c.Ended, Packets: c.Packets, Bytes: c.Bytes}
}
