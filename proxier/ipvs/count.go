package ipvs

import (
	"context"
	"errors"
	"fmt"

	"svcproxy.dev/svcproxy/netutil/lvs"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/source"
)

// Count implements proxier.Counter. It reads servers one by one, on a socket of its own.
// What rules balance, and not IPVS, is not counted: local sources under policy local.
func (o *owner) Count(ctx context.Context, addrs []proxier.FrontendAddr, each func(proxier.Pair, proxier.Count)) error {
	conn, err := lvs.Dial(ctx)
	if err != nil {
		return fmt.Errorf("ipvs, %s: counting: %w", o.fam, err)
	}
	for _, p := range addrs {
		if err = countServer(ctx, conn, p, each); err != nil {
			err = fmt.Errorf("ipvs, %s: counting: %w", o.fam, err)
			break
		}
	}
	return errors.Join(err, conn.Close())
}

func countServer(ctx context.Context, conn *lvs.Conn, p proxier.FrontendAddr, each func(proxier.Pair, proxier.Count)) error {
	list, err := conn.Counters(ctx, lvs.Key{Addr: p.Addr(), Protocol: uint8(p.Protocol), Port: p.Port()})
	for _, c := range list {
		active := uint64(c.Active)
		if p.Protocol == source.UDP { // all of them are inactive to IPVS
			active += uint64(c.Inactive)
		}
		each(proxier.Pair{FrontendAddr: p, Target: c.AddrPort}, proxier.Count{
			Active: active, Connections: c.Connections, Packets: c.Packets, Bytes: c.Bytes,
		})
	}
	return err
}
