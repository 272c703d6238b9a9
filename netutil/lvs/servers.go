package lvs

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/moby/ipvs"
	"golang.org/x/sys/unix"
)

// Flags of a virtual server, <linux/ip_vs.h>.
const (
	flagPersistent = 0x1
	flagHashed     = 0x2 // internal to the kernel
	flagOnePacket  = 0x4
)

// Servers returns the virtual servers of one family, except those for a packet mark.
//
// The kernel lists in parts, and resumes by the number of servers, of all
// namespaces, that it has passed: if one is removed in between, even in another
// namespace, the list skips the next one. What is listed exists. So each known
// server that the list lacks is looked up on its own; others will be in a later list.
func (c *Conn) Servers(ctx context.Context, v6 bool, known iter.Seq[Key]) (map[Key]Server, error) {
	var services []*ipvs.Service
	err := c.do(ctx, func(h *ipvs.Handle) (err error) {
		services, err = h.GetServices()
		return err
	})
	list := make(map[Key]Server, len(services))
	for _, s := range services {
		if err == nil && s.FWMark == 0 && (s.AddressFamily == unix.AF_INET6) == v6 {
			server := serverOf(s)
			err = c.readEngine(ctx, &server)
			list[server.Key] = server
		}
	}
	if err != nil {
		return nil, fmt.Errorf("listing virtual servers: %w", err)
	}
	return list, c.complete(ctx, list, v6, known)
}

// complete adds the known servers that a list lacks.
func (c *Conn) complete(ctx context.Context, list map[Key]Server, v6 bool, known iter.Seq[Key]) error {
	for key := range known {
		if _, listed := list[key]; listed || key.Addr.Is6() != v6 {
			continue
		}
		s, err := c.Server(ctx, key)
		if errors.Is(err, ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		list[key] = s
	}
	return nil
}

// Server returns a virtual server, or ErrNotExist.
func (c *Conn) Server(ctx context.Context, k Key) (s Server, err error) {
	err = c.do(ctx, func(h *ipvs.Handle) error {
		found, err := h.GetService(k.service())
		if err != nil {
			return err
		}
		s = serverOf(found)
		return nil
	})
	if err == nil {
		err = c.readEngine(ctx, &s)
	}
	return s, wrap(keyError(err), "looking for virtual server %v", k)
}

// Has reports whether a virtual server exists.
func (c *Conn) Has(ctx context.Context, k Key) (bool, error) {
	_, err := c.Server(ctx, k)
	return err == nil, ignoreNotExist(err)
}

// Destinations returns those of one virtual server, in no order. A server that does
// not exist has none.
func (c *Conn) Destinations(ctx context.Context, k Key) ([]Destination, error) {
	var found []*ipvs.Destination
	err := keyError(c.do(ctx, func(h *ipvs.Handle) (err error) {
		found, err = h.GetDestinations(k.service())
		return err
	}))
	list := make([]Destination, 0, len(found))
	tunnels := false
	for _, f := range found {
		d := destinationOf(f)
		tunnels = tunnels || d.Forwarding.Method == Tunnel
		list = append(list, d)
	}
	if err == nil && tunnels {
		err = c.readTunnels(ctx, k, list)
	}
	if err != nil {
		return nil, fmt.Errorf("listing destinations of %v: %w", k, err)
	}
	return list, nil
}

// AddServer adds a virtual server, without destinations. The kernel loads the
// module of its scheduler.
func (c *Conn) AddServer(ctx context.Context, s Server) error {
	err := c.write(ctx, func(h *ipvs.Handle) error { return h.NewService(s.service()) })
	return wrap(serverError(err), "adding virtual server %v with scheduler %s", s.Key, s.Scheduler)
}

// UpdateServer changes a virtual server. Its destinations and connections stay.
func (c *Conn) UpdateServer(ctx context.Context, s Server) error {
	err := c.write(ctx, func(h *ipvs.Handle) error { return h.UpdateService(s.service()) })
	return wrap(serverError(err), "changing virtual server %v to scheduler %s", s.Key, s.Scheduler)
}

// DeleteServer removes a virtual server with its destinations, if it exists.
func (c *Conn) DeleteServer(ctx context.Context, k Key) error {
	err := c.write(ctx, func(h *ipvs.Handle) error { return h.DelService(k.service()) })
	return wrap(ignoreNotExist(keyError(err)), "removing virtual server %v", k)
}

// AddDestination adds a destination to a virtual server. Of d it takes what is to be set.
func (c *Conn) AddDestination(ctx context.Context, k Key, d Destination) error {
	err := newDestinationError(c.put(ctx, cmdNewDestination, (*ipvs.Handle).NewDestination, k, d))
	return wrap(c.tunnelError(ctx, err, k, d), "adding destination %v to virtual server %v", d.AddrPort, k)
}

// UpdateDestination changes a destination. Its connections stay, and go on in the way in which
// they began. Of d it takes what is to be set.
func (c *Conn) UpdateDestination(ctx context.Context, k Key, d Destination) error {
	err := keyError(c.put(ctx, cmdSetDestination, (*ipvs.Handle).UpdateDestination, k, d))
	return wrap(c.tunnelError(ctx, err, k, d), "changing destination %v of virtual server %v", d.AddrPort, k)
}

// put writes a destination.
func (c *Conn) put(ctx context.Context, cmd uint8, do func(*ipvs.Handle, *ipvs.Service, *ipvs.Destination) error, k Key, d Destination) error {
	return c.write(ctx, func(h *ipvs.Handle) error {
		if d.Forwarding.Type != IPIP {
			return writeTunnel(c.raw, cmd, k, d)
		}
		return do(h, k.service(), d.destination())
	})
}

// tunnelError returns the error of a writing or, after it has removed the destination, ErrNoTunnel if the kernel made another
// tunnel of it: it ignores types that are newer than itself. One that it has made it can make again.
func (c *Conn) tunnelError(ctx context.Context, err error, k Key, d Destination) error {
	if err != nil || d.Forwarding.Type == IPIP || c.tunnels[d.Forwarding.Type] {
		return err
	}
	list, err := c.Destinations(ctx, k)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(list, func(l Destination) bool { return l.AddrPort == d.AddrPort && l.Forwarding == d.Forwarding }) {
		c.tunnels[d.Forwarding.Type] = true
		return nil
	}
	if err := c.DeleteDestination(ctx, k, d.AddrPort); err != nil {
		return err
	}
	return ErrNoTunnel
}

// DeleteDestination removes a destination, if it exists. Its connections end.
func (c *Conn) DeleteDestination(ctx context.Context, k Key, at netip.AddrPort) error {
	err := c.write(ctx, func(h *ipvs.Handle) error {
		return h.DelDestination(k.service(), Destination{AddrPort: at}.destination())
	})
	return wrap(ignoreNotExist(keyError(err)), "removing destination %v from virtual server %v", at, k)
}

func (c *Conn) write(ctx context.Context, ask func(*ipvs.Handle) error) error {
	c.Messages++
	return c.do(ctx, ask)
}

// Timeouts returns those of the namespace.
func (c *Conn) Timeouts(ctx context.Context) (t Timeouts, err error) {
	err = c.do(ctx, func(h *ipvs.Handle) error {
		found, err := h.GetConfig()
		if err == nil {
			t = Timeouts{TCP: found.TimeoutTCP, TCPFin: found.TimeoutTCPFin, UDP: found.TimeoutUDP}
		}
		return err
	})
	return t, wrap(err, "reading timeouts")
}

// SetTimeouts sets those of the namespace, rounded up; 0 leaves one unchanged.
func (c *Conn) SetTimeouts(ctx context.Context, t Timeouts) error {
	err := c.write(ctx, func(h *ipvs.Handle) error {
		return h.SetConfig(&ipvs.Config{TimeoutTCP: up(t.TCP), TimeoutTCPFin: up(t.TCPFin), TimeoutUDP: up(t.UDP)})
	})
	return wrap(err, "setting timeouts")
}

// up rounds up to whole seconds.
func up(d time.Duration) time.Duration { return (d + time.Second - 1).Truncate(time.Second) }

// service identifies a virtual server to the library.
func (k Key) service() *ipvs.Service {
	s := &ipvs.Service{Address: k.Addr.AsSlice(), Protocol: uint16(k.Protocol), Port: k.Port, AddressFamily: unix.AF_INET6}
	if k.Addr.Is4() {
		s.AddressFamily = unix.AF_INET
	}
	return s
}

// service returns all of a virtual server.
func (s Server) service() *ipvs.Service {
	out := s.Key.service()
	out.SchedName, out.Flags, out.Timeout, out.Netmask = s.Scheduler, uint32(s.Flags), s.Persistence, hostNetmask(s.Addr)
	if s.Persistence > 0 {
		out.Flags |= flagPersistent
	}
	if s.OnePacket {
		out.Flags |= flagOnePacket
	}
	return out
}

// serverOf returns what the library has read.
func serverOf(s *ipvs.Service) Server {
	out := Server{
		Key:       Key{Addr: addr(s.Address), Protocol: uint8(s.Protocol), Port: s.Port},
		Scheduler: s.SchedName,
		Flags:     SchedulerFlags(s.Flags & schedulerFlags),
		OnePacket: s.Flags&flagOnePacket != 0,

		ForeignOptions: s.Flags&^(flagPersistent|flagHashed|flagOnePacket|schedulerFlags) != 0,
	}
	if s.Flags&flagPersistent != 0 {
		out.Persistence = s.Timeout
		out.ForeignOptions = out.ForeignOptions || s.Netmask != hostNetmask(out.Addr)
	}
	return out
}

// hostNetmask stands for persistence by single client addresses: a mask for IPv4, a
// prefix length for IPv6.
func hostNetmask(a netip.Addr) uint32 {
	if a.Is4() {
		return 0xffffffff
	}
	return 128
}

func addr(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}

// destination returns what the library writes of a destination.
func (d Destination) destination() *ipvs.Destination {
	return &ipvs.Destination{
		Address: d.Addr().AsSlice(), Port: d.Port(), Weight: int(d.Weight), ConnectionFlags: uint32(d.Forwarding.Method),
		UpperThreshold: d.Limits.Upper, LowerThreshold: d.Limits.Lower,
	}
}

// destinationOf returns what the library has read, of which it cuts weights to 16 bits.
func destinationOf(d *ipvs.Destination) Destination {
	method := Method(d.ConnectionFlags)
	return Destination{
		AddrPort:       netip.AddrPortFrom(addr(d.Address), d.Port),
		Weight:         uint32(d.Weight),
		Forwarding:     Forwarding{Method: method},
		Limits:         Limits{Upper: d.UpperThreshold, Lower: d.LowerThreshold},
		Busy:           d.ActiveConnections+d.InactiveConnections > 0,
		ForeignOptions: method != Masquerading && method != Direct && method != Tunnel,
	}
}
