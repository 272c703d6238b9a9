// Package lvs speaks to IPVS, the kernel's own balancer, over generic netlink.
//
// It does so by itself, with the messages of mdlayher/netlink. The library for
// this, moby/ipvs, looks for the kernel's number of IPVS once in a process: after
// the module ip_vs was removed and loaded anew, all that it says goes nowhere. It
// also cuts weights to 16 bits, takes a kernel without IPVS for one that did what
// it was told, waits for answers for ever, and runs modprobe. What it would take to
// write with it, beside an own reader, is more than the six messages of write.go.
package lvs

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"time"
)

// A Key names a virtual server.
type Key struct {
	Addr     netip.Addr
	Protocol uint8 // IANA number
	Port     uint16
}

// String returns the words of ipvsadm for the server, as in "-t 10.96.0.10:80".
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

// A Server is a virtual server, which balances what is sent to it.
type Server struct {
	Key
	Scheduler string

	// Persistence is how many seconds a client keeps its destination; 0: not at all.
	Persistence uint32

	// Odd: the kernel holds more than this package can say, such as a netmask for
	// persistence or scheduling by packet. An update puts that right.
	Odd bool
}

// A Destination is where a virtual server sends packets, with masquerading: it
// changes their destination, and back in the answers.
type Destination struct {
	netip.AddrPort
	Weight uint32
	Odd    bool // the kernel forwards otherwise than by masquerading, or has thresholds

	Active, Inactive uint32 // connections; they may lag by two seconds
}

// Idle tells whether the destination has no connection.
func (d Destination) Idle() bool { return d.Active == 0 && d.Inactive == 0 }

// A Listing is a virtual server as the kernel holds it.
type Listing struct {
	Server
	Destinations []Destination
}

// Timeouts are how long the kernel keeps idle connections of its namespace. It
// counts whole seconds.
type Timeouts struct{ TCP, TCPFin, UDP time.Duration }

// What callers can mend.
var (
	ErrUnsupported = errors.New("the kernel has no IPVS: its module ip_vs is missing or not loaded")
	ErrNotExist    = errors.New("no such virtual server or destination")
	ErrExist       = errors.New("it exists")

	// ErrRefused is said of one server or new destination, and of no other: to send it
	// again is of no use before something changes. The next two are causes of it.
	ErrRefused           = errors.New("the kernel refuses it")
	ErrNoScheduler error = refusal("the kernel has no such scheduler")
	ErrNoUnicast   error = refusal("the kernel takes it for no unicast address")

	// ErrNoServer is an ErrNotExist: it is the virtual server that is missing.
	ErrNoServer error = noServer{}

	// ErrReloaded: all that IPVS held is gone. The next message reaches the new one.
	ErrReloaded = errors.New("the kernel's module ip_vs was removed and loaded anew")
)

type refusal string

func (r refusal) Error() string        { return string(r) }
func (r refusal) Is(target error) bool { return target == ErrRefused }

type noServer struct{}

func (noServer) Error() string        { return "no such virtual server" }
func (noServer) Is(target error) bool { return target == ErrNotExist }

// serverError says what an errno means where a whole virtual server was sent,
// ip_vs_add_service and ip_vs_genl_set_cmd, net/netfilter/ipvs/ip_vs_ctl.c.
func serverError(err error) error {
	if errors.Is(err, syscall.ENOENT) {
		return ErrNoScheduler
	}
	return refused(keyError(err))
}

// general are the errnos that say nothing of what was sent: they are about the
// caller, or about the moment.
var general = []syscall.Errno{
	syscall.EPERM, syscall.EACCES, syscall.EINTR, syscall.EAGAIN, syscall.EBUSY, syscall.ENOMEM, syscall.ENOBUFS,
}

// refused makes an ErrRefused of an answer that is about what was sent.
func refused(err error) error {
	no, answered := answer(err)
	if !answered || slices.Contains(general, no) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrRefused, no)
}

// answer returns the errno that the kernel answered with, if err is one, and not
// that of a call that did not reach it.
func answer(err error) (no syscall.Errno, is bool) {
	var call *os.SyscallError
	is = errors.As(err, &no) && !errors.As(err, &call)
	return no, is
}

// keyError says what an errno means everywhere else.
func keyError(err error) error {
	switch {
	case errors.Is(err, syscall.EEXIST):
		return ErrExist
	case errors.Is(err, syscall.ESRCH): // of servers only
		return ErrNoServer
	case errors.Is(err, syscall.ENOENT):
		return ErrNotExist
	}
	return err
}

// newDestinationError says what an errno means where a destination was added,
// ip_vs_new_dest, net/netfilter/ipvs/ip_vs_ctl.c: broadcast addresses of the host's
// networks are not taken, nor those of multicast, nor link-local ones.
func newDestinationError(err error) error {
	if no, answered := answer(err); answered && no == syscall.EINVAL {
		return ErrNoUnicast
	}
	return refused(keyError(err))
}

// wrap says what was being done.
func wrap(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf(format+": %w", append(args, err)...)
}
