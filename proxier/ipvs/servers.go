package ipvs

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"svcproxy/netutil/lvs"
	"svcproxy/proxier"
	"svcproxy/source"
)

// A server is a virtual server as it should be, or as the kernel holds it.
type server struct {
	lvs.Server
	dests []dest // sorted by address and port

	name   proxier.ServicePortName // zero where only the kernel knows it
	orphan bool                    // nobody wants it; it stays while destinations drain
}

// A dest is where a server sends connections. One of weight 0 gets no new ones.
type dest struct {
	netip.AddrPort
	weight         uint32
	foreignOptions bool // see lvs.Destination
	idle           bool // had no connections when the kernel was looked at
}

// A claim is what frontends want of one address, port and protocol. A node port
// may meet an external address that is an address of this node; that comes first,
// unless it only keeps connections and the node port takes new ones.
type claim struct{ address, nodePort *proxier.Frontend }

func (c claim) frontend() *proxier.Frontend {
	if c.address == nil || c.nodePort != nil && !balances(c.address) && balances(c.nodePort) {
		return c.nodePort
	}
	return c.address
}

func balances(f *proxier.Frontend) bool { return f.Outside.Action == proxier.Balance }

// needsServer tells whether IPVS has anything to do for a frontend. Where
// nothing takes new connections, endpoints of weight 0 still keep what they have.
func needsServer(f *proxier.Frontend) bool {
	return balances(f) || len(f.Outside.Pool.Kept) > 0
}

// claims are those of all frontends that need a server.
type claims struct {
	nodePortAddrs []netip.Addr
	by            map[lvs.Key]claim
}

// newClaims returns the claims of a State.
func newClaims(st *proxier.State) *claims {
	c := &claims{nodePortAddrs: st.Host.NodePortAddrs, by: make(map[lvs.Key]claim, len(st.Services))}
	for _, res := range st.Services {
		for _, f := range res.Frontends {
			c.put(f, f, nil)
		}
	}
	return c
}

// update follows a delta and returns the keys that it touches. A frontend may
// move from one service to another.
func (c *claims) update(d *proxier.Delta) map[lvs.Key]struct{} {
	touched := map[lvs.Key]struct{}{}
	for _, s := range d.Services {
		if s.Old != nil {
			for _, f := range s.Old.Frontends {
				c.put(f, nil, touched)
			}
		}
	}
	for _, s := range d.Services {
		if s.New != nil {
			for _, f := range s.New.Frontends {
				c.put(f, f, touched)
			}
		}
	}
	return touched
}

// put sets the claims of f to value, nil to give them up, and notes their keys.
func (c *claims) put(f, value *proxier.Frontend, touched map[lvs.Key]struct{}) {
	if !needsServer(f) {
		return
	}
	key := lvs.Key{Addr: f.Key.Addr, Protocol: uint8(f.Key.Protocol), Port: f.Key.Port}
	if f.Key.Kind != proxier.NodePort {
		cl := c.by[key]
		cl.address = value
		c.set(key, cl, touched)
		return
	}
	for _, key.Addr = range c.nodePortAddrs {
		cl := c.by[key]
		cl.nodePort = value
		c.set(key, cl, touched)
	}
}

func (c *claims) set(key lvs.Key, cl claim, touched map[lvs.Key]struct{}) {
	if touched != nil {
		touched[key] = struct{}{}
	}
	if cl.frontend() == nil {
		delete(c.by, key)
	} else {
		c.by[key] = cl
	}
}

// server returns the server that is wanted at a key; nil: none.
func (c *claims) server(key lvs.Key, scheduler string, pools map[*proxier.Pool][]dest) *server {
	f := c.by[key].frontend()
	if f == nil {
		return nil
	}
	pool := f.Outside.Pool
	dests, known := pools[pool]
	if !known {
		dests = destinations(pool)
		pools[pool] = dests
	}
	return &server{
		Server: lvs.Server{Key: key, Scheduler: cmp.Or(pool.Scheduler, scheduler), Persistence: seconds(pool.Affinity)},
		dests:  dests,
		name:   f.ServicePort,
	}
}

// seconds returns d as the kernel counts it, rounded up.
func seconds(d time.Duration) uint32 { return uint32((d + time.Second - 1) / time.Second) }

// destinations returns those of a pool.
func destinations(p *proxier.Pool) []dest {
	list := make([]dest, 0, len(p.Targets)+len(p.Kept))
	for _, t := range p.Targets {
		list = append(list, dest{AddrPort: t.AddrPort, weight: uint32(t.Weight)})
	}
	for _, k := range p.Kept {
		list = append(list, dest{AddrPort: k})
	}
	// A target that is also kept, under another name, is a target.
	slices.SortStableFunc(list, func(a, b dest) int { return a.Compare(b.AddrPort) })
	return slices.CompactFunc(list, func(a, b dest) bool { return a.AddrPort == b.AddrPort })
}

// outlives reports whether connections to a server go on when their destination
// leaves: those of protocols that have connections.
func canDrain(k lvs.Key) bool { return k.Protocol != uint8(source.UDP) }

// compareKeys orders servers by address, protocol and port.
func compareKeys(a, b lvs.Key) int {
	return cmp.Or(a.Addr.Compare(b.Addr), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Port, b.Port))
}
