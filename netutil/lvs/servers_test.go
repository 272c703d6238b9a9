package lvs

import (
	"net/netip"
	"testing"
)

// What the library reads has the form of what it writes, so the one conversion undoes the other.
func TestListingsAndRequestsAgree(t *testing.T) {
	for _, s := range []Server{
		{Key: Key{Addr: netip.MustParseAddr("10.96.0.10"), Protocol: 6, Port: 80}, Scheduler: "rr"},
		{Key: Key{Addr: netip.MustParseAddr("fd00::10"), Protocol: 17, Port: 53}, Scheduler: "wrr", Persistence: 3600, OnePacket: true},
		{Key: Key{Addr: netip.MustParseAddr("10.96.0.10"), Protocol: 6, Port: 80}, Scheduler: "mh", Flags: FallBack | HashPort, Persistence: 1},
	} {
		if got := serverOf(s.service()); got != s {
			t.Errorf("got %+v, want %+v", got, s)
		}
		for _, method := range []Method{Masquerading, Direct, Tunnel} {
			want := Destination{
				AddrPort: netip.AddrPortFrom(s.Addr.Next(), 8080), Weight: 65535, Forwarding: Forwarding{Method: method}, Limits: Limits{Upper: 9, Lower: 3},
			}
			if got := destinationOf(want.destination()); got != want {
				t.Errorf("got %+v, want %+v", got, want)
			}
		}
	}
}
