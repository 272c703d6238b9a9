// Package lvs makes the kernel's load balancer, IPVS, do what svcproxy wants. A Conn writes Servers with their
// Destinations, and reads them.
//
//	lvs.go      types, errors, and what errnos mean
//	conn.go     the handle of moby/ipvs, and its traps
//	servers.go  virtual servers, destinations and timeouts
//	raw.go      messages for what the library leaves out
//
// moby/ipvs v1.1.0 writes and reads virtual servers, destinations and timeouts. What it leaves out are the types
// of tunnels, persistence engines, and counters of 64 bits.
package lvs

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"
	"time"
)

// A Key identifies a virtual server.
type Key struct {
	Addr     netip.Addr
	Protocol uint8 // IANA number
	Port     uint16
}

// String returns the server as ipvsadm takes it, as in "-t 10.96.0.10:80".
func (k Key) String() string {
	return protocolFlag(k.Protocol) + " " + netip.AddrPortFrom(k.Addr, k.Port).String()
}

func protocolFlag(p uint8) string {
	switch p {
	case syscall.IPPROTO_TCP:
		return "-t"
	case syscall.IPPROTO_UDP:
		return "-u"
	}
	return "--sctp-service"
}

// A Server is a virtual server, which balances what is sent to its address.
type Server struct {
	Key
	Scheduler string

	// Flags are of the scheduler, as FallBack and HashPort are of sh and mh.
	Flags SchedulerFlags

	// Persistence is how many seconds a client keeps its destination; 0: not at all.
	Persistence uint32

	// OnePacket: where a packet goes is decided for each by itself, and no connection is remembered. The
	// kernel heeds it for UDP only.
	OnePacket bool

	// ForeignOptions: it has options that this package does not set, such as a netmask
	// for persistence. An update resets them.
	ForeignOptions bool
}

// SchedulerFlags change what a scheduler does; each has its own use of them.
type SchedulerFlags uint32

// Flags of sh, and of mh, which is in Linux from 4.18 on: IP_VS_SVC_F_SCHED_MH_FALLBACK and
// IP_VS_SVC_F_SCHED_MH_PORT, <linux/ip_vs.h>.
const (
	FallBack SchedulerFlags = 1 << 3 // a client whose destination has weight 0 goes to another one, and is not refused
	HashPort SchedulerFlags = 1 << 4 // the client's port is hashed, too

	schedulerFlags = 7 << 3 // there are three
)

// A Destination is where a virtual server sends packets.
type Destination struct {
	netip.AddrPort
	Weight         uint32 // when it is written, 65535 at most
	Forwarding     Forwarding
	Limits         Limits
	ForeignOptions bool // it has options that this package does not set, such as checksums in a tunnel
	Busy           bool // it had connections when it was read; that may lag by two seconds
}

// A Method is how packets get to a destination, by its number in <linux/ip_vs.h>.
type Method uint8

// Masquerading rewrites their destination, and the source of the replies. Direct sends them as they
// are to the link-layer address of the destination, Tunnel in other packets: the destination has
// the address of the virtual server too, and replies to clients itself.
const (
	Masquerading Method = 0
	Tunnel       Method = 2
	Direct       Method = 3
)

// A TunnelType is what packets are wrapped in, by its number in <linux/ip_vs.h>.
type TunnelType uint8

// The types of a tunnel: IP in IP; generic UDP encapsulation and GRE since Linux 5.3.
const (
	IPIP TunnelType = 0
	GUE  TunnelType = 1
	GRE  TunnelType = 2
)

// A Forwarding is how packets get to a destination. The zero value is by masquerading.
type Forwarding struct {
	Method Method
	Type   TunnelType // of Tunnel
	Port   uint16     // UDP port of the destination, of GUE; not 0 there
}

// Text returns the words of ipvsadm for a destination of some weight that packets get to in this way.
func (f Forwarding) Text(weight uint32) string {
	method, more := "-m", ""
	switch {
	case f.Method == Direct:
		method = "-g"
	case f.Method == Tunnel && f.Type == IPIP:
		method, more = "-i", " --tun-type ipip"
	case f.Method == Tunnel && f.Type == GRE:
		method, more = "-i", " --tun-type gre --tun-nocsum"
	case f.Method == Tunnel:
		method, more = "-i", fmt.Sprintf(" --tun-type gue --tun-port %d --tun-nocsum", f.Port)
	}
	return fmt.Sprintf("%s -w %d%s", method, weight, more)
}

// Limits are the thresholds of a destination. It gets no new connections once it has Upper ones,
// active and inactive together, until it has fewer than Lower; or than three quarters of Upper where
// Lower is 0. Upper 0: it gets any number. The kernel refuses a Lower above Upper.
type Limits struct{ Upper, Lower uint32 }

// Text returns the words of ipvsadm for the thresholds of a destination, with a space before each.
// ipvsadm -S leaves them out, -L --thresholds shows them.
func (l Limits) Text() (text string) {
	if l.Upper > 0 {
		text = fmt.Sprintf(" -x %d", l.Upper)
	}
	if l.Lower > 0 {
		text += fmt.Sprintf(" -y %d", l.Lower)
	}
	return text
}

// Timeouts are how long the kernel keeps idle connections of its namespace. It
// counts whole seconds.
type Timeouts struct{ TCP, TCPFin, UDP time.Duration }

// Errors that callers can handle.
var (
	ErrUnsupported = errors.New("the kernel has no IPVS: its module ip_vs is missing or not loaded")
	ErrNotExist    = errors.New("no such virtual server or destination")
	ErrExist       = errors.New("it exists")

	// ErrRefused concerns only the server or new destination that was sent: sending it
	// again is useless until something changes. The next three are kinds of it.
	ErrRefused           = errors.New("refused by the kernel")
	ErrNoScheduler error = &special{"the kernel has no such scheduler", ErrRefused}
	ErrNotUnicast  error = &special{"not a unicast address to the kernel", ErrRefused}
	ErrNoTunnel    error = &special{"the kernel has no such tunnels, which are there since Linux 5.3", ErrRefused}

	// ErrNoServer is an ErrNotExist: the virtual server itself is missing.
	ErrNoServer error = &special{"no such virtual server", ErrNotExist}

	// ErrReloaded: everything that IPVS held is gone, and this process cannot reach the new module: only a new one can.
	ErrReloaded = errors.New("the kernel's module ip_vs was removed and loaded again")
)

// A special error is a kind of a general one.
type special struct {
	text    string
	general error
}

func (e *special) Error() string { return e.text }
func (e *special) Unwrap() error { return e.general }

// serverError translates an errno that answers a whole virtual server:
// ip_vs_add_service and ip_vs_genl_set_cmd, net/netfilter/ipvs/ip_vs_ctl.c.
func serverError(err error) error {
	if errors.Is(err, syscall.ENOENT) {
		return ErrNoScheduler
	}
	return refused(keyError(err))
}

// generalErrnos do not depend on what was sent, but on the caller or the moment. The library returns the errno of a
// system call that failed like that in the kernel's reply; those that can are among these.
var generalErrnos = []syscall.Errno{
	syscall.EPERM, syscall.EACCES, syscall.EINTR, syscall.EAGAIN, syscall.EBUSY, syscall.ENOMEM, syscall.ENOBUFS,
}

// refused returns an ErrRefused if the kernel rejected what was sent.
func refused(err error) error {
	no, answered := errors.AsType[syscall.Errno](err)
	if !answered || slices.Contains(generalErrnos, no) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrRefused, no)
}

// keyError translates an errno in all other cases.
func keyError(err error) error {
	switch {
	case errors.Is(err, syscall.EEXIST):
		return ErrExist
	case errors.Is(err, syscall.ESRCH): // for servers only
		return ErrNoServer
	case errors.Is(err, syscall.ENOENT):
		return ErrNotExist
	}
	return err
}

// newDestinationError translates an errno that answers a new destination,
// ip_vs_new_dest, net/netfilter/ipvs/ip_vs_ctl.c: the kernel refuses broadcast
// addresses of the host's networks, multicast and link-local addresses.
func newDestinationError(err error) error {
	if errors.Is(err, syscall.EINVAL) {
		return ErrNotUnicast
	}
	return refused(keyError(err))
}

// wrap adds what was being done to an error.
func wrap(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf(format+": %w", append(args, err)...)
}
