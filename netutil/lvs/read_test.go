package lvs

import (
	"net/netip"
	"testing"
)

// A request has the attributes of a listing, so the one encodes what the other decodes.
func TestListingsAndRequestsAgree(t *testing.T) {
	for _, s := range []Server{
		{Key: Key{Addr: netip.MustParseAddr("10.96.0.10"), Protocol: 6, Port: 80}, Scheduler: "rr"},
		{Key: Key{Addr: netip.MustParseAddr("fd00::10"), Protocol: 17, Port: 53}, Scheduler: "wrr", Persistence: 3600},
		{Key: Key{Addr: netip.MustParseAddr("10.96.0.10"), Protocol: 6, Port: 80}, Scheduler: "mh", Flags: FallBack | HashPort, Persistence: 1},
	} {
		b, err := s.attributes().Encode()
		if err != nil {
			t.Fatal(err)
		}
		if got, ok, err := decodeServer(b); got != s || !ok || err != nil {
			t.Errorf("got %+v, %v, %v, want %+v", got, ok, err, s)
		}
		for _, way := range []Forwarding{
			{}, {Method: Direct}, {Method: Tunnel}, {Method: Tunnel, Type: GRE}, {Method: Tunnel, Type: GUE, Port: 6080},
		} {
			want := Destination{AddrPort: netip.AddrPortFrom(s.Addr.Next(), 8080), Weight: 300, Forwarding: way}
			if b, err = s.Key.destination(want).Encode(); err != nil {
				t.Fatal(err)
			}
			if got, err := decodeDestination(b, s.Addr.Is4()); got != want || err != nil {
				t.Errorf("got %+v, %v, want %+v", got, err, want)
			}
		}
	}
}
