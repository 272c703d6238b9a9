package ipvs

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"svcproxy.dev/svcproxy/netutil/ipset"
	"svcproxy.dev/svcproxy/netutil/lvs"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// A server is a virtual server, as desired or as the kernel holds it.
type server struct {
	lvs.Server
	dests []lvs.Destination // sorted by address and port; one of weight 0 gets no new connections

	name   policy.ServicePortName // zero if it was read from the kernel
	orphan bool                   // no longer desired; it stays while destinations drain

	// Destinations that do not drain when they leave: these, and those that are removed altogether.
	closed       []netip.AddrPort // sorted
	closeRemoved bool
}

// takes reports whether a server has a destination for new connections. It may be nil.
func (s *server) takes() bool {
	return s != nil && slices.ContainsFunc(s.dests, func(d lvs.Destination) bool { return d.Weight > 0 })
}

// closes reports whether a destination that leaves does not drain.
func (s *server) closes(at netip.AddrPort) bool {
	_, closed := slices.BinarySearchFunc(s.closed, at, netip.AddrPort.Compare)
	return closed || s.closeRemoved
}

// A frontendPair has the frontends of one address, port and protocol. A node port may overlap
// with an external address that is an address of this node; the latter wins, unless it
// only keeps connections and the node port takes new ones.
type frontendPair struct{ address, nodePort *policy.Frontend }

func (c frontendPair) frontend() *policy.Frontend {
	if c.address == nil || c.nodePort != nil && !balances(c.address) && balances(c.nodePort) {
		return c.nodePort
	}
	return c.address
}

func balances(f *policy.Frontend) bool { return f.Outside.Action == policy.Balance }

// needsServer reports whether a frontend needs a virtual server. Even if no endpoint
// takes new connections, those of weight 0 keep theirs; and a server without destinations
// says that the former ones do not drain.
func needsServer(f *policy.Frontend) bool {
	return balances(f) || len(f.Outside.Pool.Kept)+len(f.Outside.Pool.Closed) > 0
}

// frontendPairs are all frontends that need a server, by its key.
type frontendPairs struct {
	host policy.Host
	by   map[lvs.Key]frontendPair
}

// newFrontendPairs returns those of a State.
func newFrontendPairs(st *policy.State) *frontendPairs {
	c := &frontendPairs{host: st.Host, by: make(map[lvs.Key]frontendPair, len(st.Services))}
	for _, res := range st.Services {
		for _, f := range res.Frontends {
			c.put(f, f, nil)
		}
	}
	return c
}

// update applies a delta and returns the keys that it affects. A frontend may move from
// one service to another.
func (c *frontendPairs) update(d *policy.Delta) map[lvs.Key]struct{} {
	touched := map[lvs.Key]struct{}{}
	for _, s := range d.Services {
		for _, f := range s.Old.AllFrontends() {
			c.put(f, nil, touched)
		}
	}
	for _, s := range d.Services {
		for _, f := range s.New.AllFrontends() {
			c.put(f, f, touched)
		}
	}
	return touched
}

// put sets the claims of f to value, nil to remove them, and notes their keys.
func (c *frontendPairs) put(f, value *policy.Frontend, touched map[lvs.Key]struct{}) {
	if !needsServer(f) {
		return
	}
	key := lvs.Key{Addr: f.Key.Addr, Protocol: uint8(f.Key.Protocol), Port: f.Key.Port}
	if f.Key.Kind != policy.NodePort {
		cl := c.by[key]
		cl.address = value
		c.set(key, cl, touched)
		return
	}
	for _, key.Addr = range c.host.Addrs(f) {
		cl := c.by[key]
		cl.nodePort = value
		c.set(key, cl, touched)
	}
}

func (c *frontendPairs) set(key lvs.Key, cl frontendPair, touched map[lvs.Key]struct{}) {
	if touched != nil {
		touched[key] = struct{}{}
	}
	if cl.frontend() == nil {
		delete(c.by, key)
	} else {
		c.by[key] = cl
	}
}

// server returns the desired server at a key; nil: none.
func (c *frontendPairs) server(key lvs.Key, scheduler string, pools map[*policy.Pool][]lvs.Destination) *server {
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
	name, flags := schedulerOf(pool, scheduler)
	return &server{
		Server: lvs.Server{Key: key, Scheduler: name, Flags: flags, Persistence: seconds(pool.Affinity), OnePacket: pool.OnePacket},
		dests:  dests,
		name:   f.ServicePort,

		closed: pool.Closed, closeRemoved: pool.CloseRemoved,
	}
}

// schedulerOf returns the scheduler of a pool, and its flags. Maglev is mh of the kernel.
// Its table keeps the slots of a destination that drains, of weight 0: without FallBack, new
// connections that hash to one of them would be refused all the while.
func schedulerOf(p *policy.Pool, byDefault string) (string, lvs.SchedulerFlags) {
	switch p.Hash.On {
	case source.ClientIP:
		return "mh", lvs.FallBack
	case source.ClientIPPort:
		return "mh", lvs.FallBack | lvs.HashPort
	}
	return cmp.Or(p.Scheduler, byDefault), flagsOf(p.SchedulerFlags)
}

// flagsOf returns flags as the kernel has them: three, to which schedulers give names.
func flagsOf(flags source.SchedulerFlags) (out lvs.SchedulerFlags) {
	for i, named := range []source.SchedulerFlags{
		source.SHFallback | source.MHFallback | source.Flag1, source.SHPort | source.MHPort | source.Flag2, source.Flag3,
	} {
		if flags&named != 0 {
			out |= lvs.FallBack << i
		}
	}
	return out
}

// seconds returns d in the kernel's unit, rounded up.
func seconds(d time.Duration) uint32 { return uint32((d + time.Second - 1) / time.Second) }

// destinations returns those of a pool.
func destinations(p *policy.Pool) []lvs.Destination {
	list, way := make([]lvs.Destination, 0, len(p.Targets)+len(p.Kept)), wayOf(p.Forward)
	add := func(at netip.AddrPort, weight uint32) {
		list = append(list, lvs.Destination{AddrPort: at, Weight: weight, Forwarding: way, Limits: limitsOf(p, at)})
	}
	for _, t := range p.Targets {
		add(t.AddrPort(), uint32(t.Weight))
	}
	for _, k := range p.Kept {
		add(k, 0)
	}
	// A target that is also kept, under another name, is a target.
	slices.SortStableFunc(list, compareDests)
	return slices.CompactFunc(list, func(a, b lvs.Destination) bool { return a.AddrPort == b.AddrPort })
}

func limitsOf(p *policy.Pool, at netip.AddrPort) lvs.Limits {
	return lvs.Limits{Upper: p.Limits[at].Max, Lower: p.Limits[at].Min}
}

func isDatagrams(k lvs.Key) bool { return k.Protocol == uint8(source.UDP) }

// drainTime returns how long a removed destination of a server drains, where connections have timeout.
func drainTime(k lvs.Key, timeout time.Duration) time.Duration {
	if isDatagrams(k) {
		return min(datagramGrace, timeout)
	}
	return timeout
}

// compareKeys orders servers by address, protocol and port.
func compareKeys(a, b lvs.Key) int {
	return cmp.Or(a.Addr.Compare(b.Addr), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Port, b.Port))
}

// wayOf returns how packets get to the destinations of a service.
func wayOf(f source.Forwarding) lvs.Forwarding {
	switch f.Method {
	case source.ForwardDirect:
		return lvs.Forwarding{Method: lvs.Direct}
	case source.ForwardTunnel:
		types := map[source.TunnelType]lvs.TunnelType{source.IPIP: lvs.IPIP, source.GUE: lvs.GUE, source.GRE: lvs.GRE}
		return lvs.Forwarding{Method: lvs.Tunnel, Type: types[f.Tunnel], Port: f.Port}
	}
	return lvs.Forwarding{}
}

// compareDests orders destinations by address and port.
func compareDests(a, b lvs.Destination) int { return a.Compare(b.AddrPort) }

// isAs reports whether an existing destination is as desired.
func isAs(have, want lvs.Destination) bool {
	have.Busy = want.Busy
	return have == want
}

// draining returns what is left of a destination that drains. Its connections keep their way, and count
// as going on until it is read again.
func draining(d lvs.Destination) lvs.Destination {
	d.Weight, d.ForeignOptions, d.Busy = 0, false, true
	return d
}

// datagramGrace is how long a removed UDP destination keeps its flows, whose end is unknown: time
// enough for the answers that are under way. It is less than the looks of proxier wait for such a flow.
const datagramGrace = time.Second

func entryOf(key lvs.Key) ipset.Entry {
	return ipset.Entry{Addr: key.Addr, Protocol: key.Protocol, Port: key.Port}
}
