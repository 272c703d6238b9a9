package healthcheck

import (
	"context"

	"svcproxy.dev/svcproxy/source"
)

// udp sends a datagram, and the first answer decides. No answer is a failure, also where
// any is good: a host that is gone says nothing.
type udp struct {
	dialer *dialer
	talk   // without expect any answer is good
}

func newUDP(check *source.HealthCheck) (asker, error) {
	talk, err := newTalk(check)
	return &udp{newDialer(check), talk}, err
}

func (u *udp) ask(ctx context.Context, q Question) error {
	conn, err := u.dialer.dial(ctx, "udp", q.At)
	if err != nil {
		return of("connect", err)
	}
	defer conn.Close()
	defer bound(ctx, conn)()
	if _, err := conn.Write(u.send); err != nil {
		return of("send", err)
	}
	answer := make([]byte, u.room())
	n, err := conn.Read(answer)
	return u.judge(answer[:n], of("answer", err))
}

// room is how many bytes of an answer are of interest.
func (u *udp) room() int {
	if u.expect == nil {
		return 1
	}
	return maxTalk
}

func (u *udp) judge(answer []byte, err error) error {
	if err == nil && u.expect != nil && !matches(u.expect, answer) {
		return errAnswer
	}
	return err
}
