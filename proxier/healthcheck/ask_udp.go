package healthcheck

import (
	"context"

	"svcproxy.dev/svcproxy/source"
)

// newUDP returns an asker that sends a datagram, and the first answer decides. No answer is a failure, also where
// any is good: a host that is gone says nothing.
func newUDP(check *source.HealthCheck) (asker, error) {
	dialer := newDialer(check)
	talk, err := newTalk(check)
	room := maxTalk // bytes of an answer that are of interest
	if talk.expect == nil {
		room = 1 // any is good
	}
	return func(ctx context.Context, q Question) error {
		conn, err := dialer.dial(ctx, "udp", q.At)
		if err != nil {
			return of("connect", err)
		}
		defer conn.Close()
		defer bound(ctx, conn)()
		if _, err := conn.Write(talk.send); err != nil {
			return of("send", err)
		}
		answer := make([]byte, room)
		n, err := conn.Read(answer)
		if err == nil && talk.expect != nil && !matches(talk.expect, answer[:n]) {
			return errAnswer
		}
		return of("answer", err)
	}, err
}
