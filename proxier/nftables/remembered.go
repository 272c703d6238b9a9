package nftables

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"svcproxy.dev/svcproxy/netutil/nft"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/nftables/layout"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// Remembered returns the endpoint of a pool that session affinity keeps for a client; nil: none.
func Remembered(_ context.Context, p *policy.Pool, client netip.Addr) (*proxier.Remembered, error) {
	fam := policy.FamilyOf(client)
	conn, err := nft.Dial()
	if nft.NotSupported(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("nftables, %s: %w", fam, err)
	}
	pool := layout.PoolHash(p)
	record, err := getElement(conn, fam, layout.Affinity, layout.PutNumber(layout.PutAddr(nil, client), pool))
	var owner nft.Element // of the ticket that the record has
	if err == nil && len(record.Data) == 4 {
		owner, err = getElement(conn, fam, layout.TicketOwner, slices.Concat(layout.PutNumber(nil, pool), record.Data))
	}
	if err = errors.Join(err, conn.Close()); err != nil {
		return nil, fmt.Errorf("nftables, %s: reading which endpoint a client keeps: %w", fam, err)
	}
	if len(owner.Data) != 4 {
		return nil, nil
	}
	i := slices.Index(layout.EndpointIDs(p), binary.NativeEndian.Uint32(owner.Data))
	if i < 0 {
		return nil, nil
	}
	return &proxier.Remembered{Target: p.Targets[i].AddrPort, Left: min(record.Expires, p.Affinity)}, nil
}

// getElement returns an element of a set; without data: there is none.
func getElement(conn *nft.Conn, fam policy.Family, s layout.Set, key []byte) (found nft.Element, err error) {
	err = conn.Get(layout.Dialects[fam].Table(), s.Name(), 1, func(int) []byte { return key }, func(_ int, e *nft.Element) {
		found = nft.Element{Data: slices.Clone(e.Data), Expires: e.Expires}
	})
	return found, err
}
