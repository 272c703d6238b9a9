package lvs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/moby/ipvs"
)

// AddServer makes a virtual server, without destinations. The kernel loads the
// module of its scheduler.
func (c *Conn) AddServer(ctx context.Context, s Server) error {
	err := c.write(ctx, func(h *ipvs.Handle) error { return h.NewService(s.message()) })
	return wrap(serverError(err), "adding virtual server %v with scheduler %s", s.Key, s.Scheduler)
}

// UpdateServer changes a virtual server. Its destinations and connections stay.
func (c *Conn) UpdateServer(ctx context.Context, s Server) error {
	err := c.write(ctx, func(h *ipvs.Handle) error { return h.UpdateService(s.message()) })
	return wrap(serverError(err), "changing virtual server %v to scheduler %s", s.Key, s.Scheduler)
}

// DeleteServer removes a virtual server with its destinations. One that is not there is no error.
func (c *Conn) DeleteServer(ctx context.Context, k Key) error {
	err := c.write(ctx, func(h *ipvs.Handle) error { return h.DelService(k.message()) })
	return wrap(unlessGone(keyError(err)), "removing virtual server %v", k)
}

// AddDestination adds a destination to a virtual server.
func (c *Conn) AddDestination(ctx context.Context, k Key, at netip.AddrPort, weight uint16) error {
	err := c.write(ctx, func(h *ipvs.Handle) error { return h.NewDestination(k.message(), destination(at, weight)) })
	return wrap(keyError(err), "adding destination %v to virtual server %v", at, k)
}

// UpdateDestination changes the weight of a destination. Its connections stay.
func (c *Conn) UpdateDestination(ctx context.Context, k Key, at netip.AddrPort, weight uint16) error {
	err := c.write(ctx, func(h *ipvs.Handle) error { return h.UpdateDestination(k.message(), destination(at, weight)) })
	return wrap(keyError(err), "changing destination %v of virtual server %v", at, k)
}

// DeleteDestination removes a destination, whose connections end. One that is not there is no error.
func (c *Conn) DeleteDestination(ctx context.Context, k Key, at netip.AddrPort) error {
	err := c.write(ctx, func(h *ipvs.Handle) error { return h.DelDestination(k.message(), destination(at, 0)) })
	return wrap(unlessGone(keyError(err)), "removing destination %v from virtual server %v", at, k)
}

func unlessGone(err error) error {
	if errors.Is(err, ErrNotExist) {
		return nil
	}
	return err
}

// Timeouts returns those of the namespace.
func (c *Conn) Timeouts(ctx context.Context) (t Timeouts, err error) {
	err = c.write(ctx, func(h *ipvs.Handle) error {
		have, err := h.GetConfig()
		if err == nil {
			t = Timeouts{TCP: have.TimeoutTCP, TCPFin: have.TimeoutTCPFin, UDP: have.TimeoutUDP}
		}
		return err
	})
	if err != nil {
		return t, fmt.Errorf("reading time-outs: %w", err)
	}
	return t, nil
}

// SetTimeouts sets those of the namespace, rounded up; 0 leaves one as it is.
func (c *Conn) SetTimeouts(ctx context.Context, t Timeouts) error {
	err := c.write(ctx, func(h *ipvs.Handle) error {
		return h.SetConfig(&ipvs.Config{TimeoutTCP: wholeSeconds(t.TCP), TimeoutTCPFin: wholeSeconds(t.TCPFin), TimeoutUDP: wholeSeconds(t.UDP)})
	})
	return wrap(err, "setting time-outs")
}

func wholeSeconds(d time.Duration) time.Duration {
	return (d + time.Second - 1).Truncate(time.Second)
}

func (k Key) message() *ipvs.Service {
	return &ipvs.Service{AddressFamily: familyOf(k.Addr), Address: k.Addr.AsSlice(), Protocol: uint16(k.Protocol), Port: k.Port}
}

func (s Server) message() *ipvs.Service {
	m := s.Key.message()
	m.SchedName = s.Scheduler
	m.Netmask = wholeNetmask(s.Addr)
	if s.Persistence > 0 {
		m.Flags, m.Timeout = flagPersistent, s.Persistence
	}
	return m
}

func destination(at netip.AddrPort, weight uint16) *ipvs.Destination {
	return &ipvs.Destination{
		AddressFamily: familyOf(at.Addr()), Address: at.Addr().AsSlice(), Port: at.Port(),
		Weight: int(weight), ConnectionFlags: ipvs.ConnectionFlagMasq,
	}
}
