package lab

import (
	"net/netip"

	"svcproxy.dev/svcproxy/internal/echotest"
)

// lateRequest is how a datagram asks for its answer to be late, in nanoseconds.
const lateRequest = echotest.LateRequest

// Serve starts a TCP and a UDP server on h, which say that they are h.
func (l *Lab) Serve(h *Host, at netip.AddrPort) error {
	return h.Do(func() error { return l.servers.Serve(h.Role, at) })
}
