package nftables

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/netutil/nft"
	"svcproxy.dev/svcproxy/proxier"
)

// A change of mode migrates clients: they are read and written here independently of
// a Backend, whose methods do not wait.

// Clients returns which endpoint each client of the pools keeps, up to limit. Pools
// are all of the family with affinity. With an error it returns those that were read.
func Clients(ctx context.Context, fam proxier.Family, pools []*proxier.Pool, limit int) ([]proxier.Client, error) {
	conn, err := nft.Dial()
	if nft.NotSupported(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("nftables, %s: %w", fam, err)
	}
	r := clientReader{poolIndex: newPoolIndex(fam, pools), ctx: ctx, conn: conn, limit: limit}
	err = r.read()
	if errors.Is(err, unix.ENOENT) || errors.Is(err, errLimit) { // there is no such table or set
		err = nil
	}
	if err = errors.Join(err, conn.Close()); err != nil {
		err = fmt.Errorf("nftables, %s: reading which clients keep their endpoint: %w", fam, err)
	}
	return r.list, err
}

// A poolIndex maps the numbers in the table to pools and endpoints.
type poolIndex struct {
	*dialect
	ids       *poolIDs
	pools     map[uint32]*proxier.Pool
	endpoints map[*proxier.Pool][]uint32
}

func newPoolIndex(fam proxier.Family, pools []*proxier.Pool) poolIndex {
	r := poolIndex{
		dialect: dialects[fam], ids: newPoolIDs(hash32),
		pools: make(map[uint32]*proxier.Pool, len(pools)), endpoints: make(map[*proxier.Pool][]uint32, len(pools)),
	}
	names := make([]string, len(pools))
	for i, p := range pools {
		names[i] = poolName(p)
	}
	r.ids.numberNames(names)
	for _, p := range pools {
		r.pools[r.ids.id(p)], r.endpoints[p] = p, endpointIDs(p)
	}
	return r
}

// endpoint returns a pool and the endpoint that a client keeps.
func (r *poolIndex) endpoint(c *proxier.Client) poolKey {
	return newPoolKey(r.ids.id(c.Pool), r.endpoints[c.Pool][c.Target])
}

var errLimit = errors.New("limit reached")

// A clientReader reads which clients keep which endpoint.
type clientReader struct {
	poolIndex
	ctx    context.Context
	conn   *nft.Conn
	owners map[poolKey]uint32 // of tickets: endpoints
	limit  int
	list   []proxier.Client
}

func (r *clientReader) read() error {
	r.owners = map[poolKey]uint32{}
	err := r.conn.Scan(r.table(), set{kind: ticketOwner}.name(), func(e *nft.Element) error {
		if len(e.Key) == len(poolKey{}) && len(e.Data) == 4 {
			r.owners[poolKey(e.Key)] = binary.NativeEndian.Uint32(e.Data)
		}
		return r.ctx.Err()
	})
	if err != nil {
		return err
	}
	return r.conn.Scan(r.table(), set{kind: affinity}.name(), func(e *nft.Element) error {
		r.addClient(e)
		if len(r.list) >= r.limit {
			return errLimit
		}
		return r.ctx.Err()
	})
}

// addClient adds a client, unless its endpoint has left.
func (r *clientReader) addClient(e *nft.Element) {
	n := r.addrBytes()
	if len(e.Key) != n+4 || len(e.Data) != 4 {
		return
	}
	pool := r.pools[binary.NativeEndian.Uint32(e.Key[n:])]
	endpoint, known := r.owners[poolKey(slices.Concat(e.Key[n:], e.Data))]
	if pool == nil || !known {
		return
	}
	addr, _ := netip.AddrFromSlice(e.Key[:n])
	if i := slices.Index(r.endpoints[pool], endpoint); i >= 0 {
		r.list = append(r.list, proxier.Client{Addr: addr, Pool: pool, Target: i, Left: min(e.Expires, pool.Affinity)})
	}
}

// clientsAtOnce is how many clients are written in one transaction, some 100 KB:
// a Backend's changes wait no longer than for that.
const clientsAtOnce = 1000

// Keep lets clients keep their endpoints as if this mode had chosen them, and returns
// how many do. A client that was meanwhile sent to another endpoint gets the former
// one back. Pools are as for Clients.
func Keep(ctx context.Context, fam proxier.Family, pools []*proxier.Pool, clients []proxier.Client) (kept int, err error) {
	conn, err := nft.Dial()
	if err != nil {
		return 0, fmt.Errorf("nftables, %s: %w", fam, err)
	}
	conn.Mute()
	k := clientWriter{
		poolIndex: newPoolIndex(fam, pools),
		table:     newTableConn(dialects[fam], conn),
		tickets:   map[poolKey][]byte{},
	}
	err = k.writeAll(ctx, clients)
	if err = errors.Join(err, conn.Close()); err != nil {
		err = fmt.Errorf("nftables, %s: writing which clients keep their endpoint: %w", fam, err)
	}
	return k.written, err
}

// A clientWriter writes which clients keep which endpoint.
type clientWriter struct {
	poolIndex
	table   *tableConn
	tickets map[poolKey][]byte
	written int
}

func (k *clientWriter) writeAll(ctx context.Context, clients []proxier.Client) error {
	endpoints := map[poolKey]bool{}
	for i := range clients {
		endpoints[k.endpoint(&clients[i])] = true
	}
	for part := range slices.Chunk(slices.Collect(maps.Keys(endpoints)), revokeAtOnce) {
		if err := k.ensureTickets(ctx, part); err != nil {
			return err
		}
	}
	for part := range slices.Chunk(clients, clientsAtOnce) {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := k.write(part); err != nil {
			return err
		}
	}
	return nil
}

// ensureTickets gives endpoints tickets, if they have none.
func (k *clientWriter) ensureTickets(ctx context.Context, endpoints []poolKey) error {
	for range revokeAttempts {
		if err := ctx.Err(); err != nil {
			return err
		}
		err := k.tryTickets(endpoints)
		if err == nil {
			return k.revokeAbsent(ctx, endpoints)
		}
		if !isConflict(err) {
			return err
		}
	}
	return errors.New("giving tickets to endpoints: conflicts with new connections each time")
}

func (k *clientWriter) tryTickets(endpoints []poolKey) error {
	t := k.table
	have := map[poolKey][]byte{}
	err := t.getElements(tickets, endpoints, func(e poolKey, ticket *nft.Element) { have[e] = slices.Clone(ticket.Data) })
	if err != nil {
		return err
	}
	t.batch.Reset()
	for _, e := range endpoints {
		if have[e] == nil {
			have[e] = putNumber(nil, rand.Uint32())
		}
		t.batch.AddElement(set{kind: tickets}.name(), nft.Element{Key: e[:], Data: have[e], Timeout: longestExpiry})
		owner := slices.Concat(e[:4], have[e])
		t.batch.AddElement(set{kind: ticketOwner}.name(), nft.Element{Key: owner, Data: e[4:], Timeout: longestExpiry})
		k.tickets[e] = have[e]
	}
	return t.commit()
}

// revokeAbsent removes the tickets of endpoints that have left their pool. One that
// leaves later loses its ticket then, as any other.
func (k *clientWriter) revokeAbsent(ctx context.Context, endpoints []poolKey) error {
	present := make([]bool, len(endpoints))
	err := k.table.conn.Get(k.dialect.table(), set{kind: poolTargets}.name(), len(endpoints),
		func(i int) []byte { return endpoints[i][:] }, func(i int, _ *nft.Element) { present[i] = true })
	if err != nil {
		return err
	}
	var absent []poolKey
	for i, e := range endpoints {
		if !present[i] {
			delete(k.tickets, e)
			absent = append(absent, e)
		}
	}
	return k.table.revoke(ctx, absent)
}

// write writes clients in one transaction. Packets may have added some of them
// meanwhile, for other endpoints: these are replaced.
func (k *clientWriter) write(clients []proxier.Client) error {
	name := set{kind: affinity}.name()
	list := make([]nft.Element, 0, len(clients))
	for i := range clients {
		if e, ok := k.element(&clients[i]); ok {
			list = append(list, e)
		}
	}
	var stale []nft.Element
	for range revokeAttempts {
		k.table.batch.Reset()
		for _, e := range stale {
			k.table.batch.DeleteElement(name, e)
		}
		for _, e := range list {
			k.table.batch.AddElement(name, e)
		}
		err := k.table.commit()
		if err == nil {
			k.written += len(list)
			return nil
		}
		if !isConflict(err) && !errors.Is(err, unix.ENOENT) { // one of stale may have expired
			return err
		}
		if stale, err = k.stale(list); err != nil {
			return err
		}
	}
	return errors.New("clients are added faster than they are replaced")
}

// element returns a client as an element, unless its endpoint has left.
func (k *clientWriter) element(c *proxier.Client) (nft.Element, bool) {
	ticket, ok := k.tickets[k.endpoint(c)]
	key := putNumber(putAddr(nil, c.Addr), k.ids.id(c.Pool))
	return nft.Element{Key: key, Data: ticket, Timeout: expiryClass(c.Pool.Affinity), Expires: c.Left}, ok
}

// stale returns the elements that exist for clients of list, to be replaced. The
// time that is left to a client is not shortened.
func (k *clientWriter) stale(list []nft.Element) (stale []nft.Element, err error) {
	err = k.table.conn.Get(k.dialect.table(), set{kind: affinity}.name(), len(list),
		func(i int) []byte { return list[i].Key }, func(i int, e *nft.Element) {
			list[i].Expires = max(list[i].Expires, e.Expires)
			stale = append(stale, nft.Element{Key: list[i].Key})
		})
	return stale, err
}

// isConflict reports whether an element was refused because another has its key.
func isConflict(err error) bool { return errors.Is(err, unix.EEXIST) || errors.Is(err, unix.EBUSY) }
