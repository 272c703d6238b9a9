package healthcheck

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"regexp"
	"time"

	"svcproxy.dev/svcproxy/source"
)

// tcp connects, and talks where the check says so.
type tcp struct {
	dialer *dialer
	talk   talk
}

func newTCP(check *source.HealthCheck) (asker, error) {
	talk, err := newTalk(check)
	return &tcp{newDialer(check), talk}, err
}

func (t *tcp) ask(ctx context.Context, q Question) error {
	conn, err := t.dialer.tcp(ctx, q.At)
	if err != nil {
		return err
	}
	defer conn.Close()
	return t.talk.with(ctx, conn)
}

// A dialer connects from the source address of a check.
type dialer struct {
	net.Dialer
	from netip.Addr // not valid: as the kernel chooses
}

func newDialer(check *source.HealthCheck) *dialer {
	d := &dialer{Dialer: net.Dialer{KeepAlive: -1}, from: check.Source}
	d.SetMultipathTCP(false)
	return d
}

// source returns where to ask from: the kernel chooses for endpoints of the other family.
func (d *dialer) source(to netip.AddrPort) netip.AddrPort {
	if d.from.Is4() != to.Addr().Is4() {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(d.from, 0)
}

// tcp connects. The connection ends with a reset, at this host as well as at the
// endpoint: thousands that wait for late segments (TIME_WAIT) would else pile up at
// one of them, and hold their entries in connection tracking for minutes.
func (d *dialer) tcp(ctx context.Context, to netip.AddrPort) (*net.TCPConn, error) {
	conn, err := d.DialTCP(ctx, "tcp", d.source(to), to)
	if err != nil {
		return nil, of("connect", err)
	}
	return conn, conn.SetLinger(0)
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

func newTalk(check *source.HealthCheck) (talk, error) {
	t := talk{send: []byte(check.Send)}
	if check.Expect == "" {
		return t, nil
	}
	var err error
	t.expect, err = regexp.Compile(check.Expect)
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
		if t.expect.Match(heard) {
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

// unheard says why nothing more came: an endpoint that said another thing did not time out, it said it.
func (t *talk) unheard(heard []byte, err error) error {
	if len(heard) > 0 {
		return errAnswer
	}
	return of("answer", err)
}
