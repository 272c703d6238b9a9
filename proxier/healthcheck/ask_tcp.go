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

// maxTalk and maxReads bound what is read of an answer: each read is looked through from the beginning.
const (
	maxTalk  = 16 << 10
	maxReads = 64
)

var errAnswer = errors.New("the answer does not match")

// askTCP connects, and talks where the check says so.
func askTCP(ctx context.Context, at netip.AddrPort, check *source.HealthCheck, expect *regexp.Regexp) error {
	conn, err := connect(ctx, check, at)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer bound(ctx, conn)()
	if check.Send != "" {
		if _, err := conn.Write([]byte(check.Send)); err != nil {
			return of("send", err)
		}
	}
	if expect == nil {
		return nil
	}
	return listen(conn, expect)
}

// askUDP sends a datagram, and the first answer decides. No answer is a failure, also where
// any is good: a host that is gone says nothing.
func askUDP(ctx context.Context, at netip.AddrPort, check *source.HealthCheck, expect *regexp.Regexp) error {
	conn, err := dial(ctx, check, "udp", at)
	if err != nil {
		return of("connect", err)
	}
	defer conn.Close()
	defer bound(ctx, conn)()
	if _, err := conn.Write([]byte(check.Send)); err != nil {
		return of("send", err)
	}
	room := maxTalk // bytes of an answer that are of interest
	if expect == nil {
		room = 1 // any is good
	}
	answer := make([]byte, room)
	n, err := conn.Read(answer)
	if err == nil && expect != nil && !matches(expect, answer[:n]) {
		return errAnswer
	}
	return of("answer", err)
}

// connect connects by TCP. The connection ends with a reset, at this host as well as at the
// endpoint: thousands that wait for late segments (TIME_WAIT) would else pile up at
// one of them, and hold their entries in connection tracking for minutes.
func connect(ctx context.Context, check *source.HealthCheck, to netip.AddrPort) (*net.TCPConn, error) {
	conn, err := dial(ctx, check, "tcp", to)
	if err != nil {
		return nil, of("connect", err)
	}
	c := conn.(*net.TCPConn)
	return c, c.SetLinger(0)
}

// dial connects from the source address of a check, where that is of the endpoint's family. The port is one that is free
// for this endpoint: where it is bound before, it has to be free for all, and a busy host has few of these.
func dial(ctx context.Context, check *source.HealthCheck, network string, to netip.AddrPort) (net.Conn, error) {
	d := net.Dialer{KeepAlive: -1}
	d.SetMultipathTCP(false)
	if from := netip.AddrPortFrom(check.Source, 0); check.Source.IsValid() && check.Source.Is4() == to.Addr().Is4() {
		d.Control, d.LocalAddr = portLater, net.TCPAddrFromAddrPort(from)
		if network == "udp" {
			d.LocalAddr = net.UDPAddrFromAddrPort(from)
		}
	}
	return d.DialContext(ctx, network, to.String())
}

// portLater has bind choose an address and no port.
func portLater(_, _ string, conn syscall.RawConn) error {
	return conn.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1) // without it ports are only scarcer
	})
}

// bound ends what is read and written with ctx, until the function that it returns is called.
func bound(ctx context.Context, conn net.Conn) (stop func() bool) {
	return context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
}

// listen reads until what is expected was heard.
func listen(conn net.Conn, expect *regexp.Regexp) error {
	heard := make([]byte, 0, 512)
	for range maxReads {
		if len(heard) == cap(heard) {
			heard = append(heard, make([]byte, len(heard))...)[:len(heard)]
		}
		n, err := conn.Read(heard[len(heard):cap(heard)])
		heard = heard[:len(heard)+n]
		switch {
		case matches(expect, heard):
			return nil
		case err != nil && len(heard) == 0:
			return of("answer", err)
		case err != nil && n == 0, len(heard) >= maxTalk: // an endpoint that said another thing did not time out, it said it
			return errAnswer
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
