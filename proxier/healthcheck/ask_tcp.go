package healthcheck

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"regexp"
	"syscall"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/source"
)

// newTCP returns an asker that connects, and talks where the check says so.
func newTCP(check *source.HealthCheck) (asker, error) {
	dialer := newDialer(check)
	talk, err := newTalk(check)
	return func(ctx context.Context, q Question) error {
		conn, err := dialer.tcp(ctx, q.At)
		if err != nil {
			return err
		}
		defer conn.Close()
		return talk.with(ctx, conn)
	}, err
}

// A dialer connects from the source address of a check.
type dialer struct {
	net.Dialer                       // without it
	bound      map[string]net.Dialer // by network
	from       netip.Addr            // not valid: as the kernel chooses
}

func newDialer(check *source.HealthCheck) *dialer {
	d := &dialer{Dialer: net.Dialer{KeepAlive: -1}, from: check.Source}
	d.SetMultipathTCP(false)
	if !d.from.IsValid() {
		return d
	}
	overTCP, overUDP := d.Dialer, d.Dialer
	overTCP.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(d.from, 0))
	overUDP.LocalAddr = net.UDPAddrFromAddrPort(netip.AddrPortFrom(d.from, 0))
	overTCP.Control, overUDP.Control = portLater, portLater
	d.bound = map[string]net.Dialer{"tcp": overTCP, "udp": overUDP}
	return d
}

// portLater has bind choose an address and no port.
func portLater(_, _ string, conn syscall.RawConn) error {
	return conn.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1) // without it ports are only scarcer
	})
}

// tcp connects. The connection ends with a reset, at this host as well as at the
// endpoint: thousands that wait for late segments (TIME_WAIT) would else pile up at
// one of them, and hold their entries in connection tracking for minutes.
func (d *dialer) tcp(ctx context.Context, to netip.AddrPort) (*net.TCPConn, error) {
	conn, err := d.dial(ctx, "tcp", to)
	if err != nil {
		return nil, of("connect", err)
	}
	c := conn.(*net.TCPConn)
	return c, c.SetLinger(0)
}

// dial connects. Its port is one that is free for this endpoint: where it is bound before, it
// has to be free for all, and a busy host has few of these.
func (d *dialer) dial(ctx context.Context, network string, to netip.AddrPort) (net.Conn, error) {
	if with, ok := d.bound[network]; ok && d.from.Is4() == to.Addr().Is4() { // else the kernel chooses
		return with.DialContext(ctx, network, to.String())
	}
	return d.DialContext(ctx, network, to.String())
}

// bound ends what is read and written with ctx, until the function that it returns is called.
func bound(ctx context.Context, conn net.Conn) (stop func() bool) {
	return context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
}

// A talk is what is said over a connection, and what must be heard.
type talk struct {
	send   []byte
	expect *regexp.Regexp // nil: nothing
}

// maxTalk and maxReads bound what is read of an answer: each read is looked through from the beginning.
const (
	maxTalk  = 16 << 10
	maxReads = 64
)

var errAnswer = errors.New("the answer does not match")

func newTalk(check *source.HealthCheck) (t talk, err error) {
	t.send = []byte(check.Send)
	if check.Expect != "" {
		t.expect, err = regexp.Compile(check.Expect)
	}
	return t, err
}

// with talks until what is expected was heard. It takes no longer than ctx.
func (t *talk) with(ctx context.Context, conn net.Conn) error {
	if len(t.send) == 0 && t.expect == nil {
		return nil
	}
	defer bound(ctx, conn)()
	if len(t.send) > 0 {
		if _, err := conn.Write(t.send); err != nil {
			return of("send", err)
		}
	}
	if t.expect == nil {
		return nil
	}
	return t.listen(conn)
}

func (t *talk) listen(conn net.Conn) error {
	heard := make([]byte, 0, 512)
	for range maxReads {
		if len(heard) == cap(heard) {
			heard = append(heard, make([]byte, len(heard))...)[:len(heard)]
		}
		n, err := conn.Read(heard[len(heard):cap(heard)])
		heard = heard[:len(heard)+n]
		if matches(t.expect, heard) {
			return nil
		}
		if err != nil && n == 0 {
			return t.unheard(heard, err)
		}
		if len(heard) >= maxTalk {
			break
		}
	}
	return errAnswer
}

// matches reports whether an answer matches: each byte is taken for the character of its number,
// so that \xHH in an expression stands for one of any value.
func matches(expr *regexp.Regexp, answer []byte) bool {
	chars := make([]byte, 0, len(answer)*2)
	for _, b := range answer {
		chars = utf8.AppendRune(chars, rune(b))
	}
	return expr.Match(chars)
}

// unheard says why nothing more came: an endpoint that said another thing did not time out, it said it.
func (t *talk) unheard(heard []byte, err error) error {
	if len(heard) > 0 {
		return errAnswer
	}
	return of("answer", err)
}
