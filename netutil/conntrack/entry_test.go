package conntrack

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/netutil/internal/nlmsg"
)

// What a filter asks for is what an entry that passes it holds, so the one encodes what the other decodes.
func TestFilterAndEntryAgree(t *testing.T) {
	for _, tt := range []struct {
		filter Filter
		src    string // of what it asks for
	}{
		{Filter{Protocol: unix.IPPROTO_UDP, Src: netip.MustParseAddrPort("10.96.0.1:53"), Dst: netip.MustParseAddrPort("10.96.0.2:54")}, "10.96.0.1:53"},
		{Filter{Protocol: unix.IPPROTO_UDP, Src: filterable(netip.MustParseAddrPort("[fd00:96::1]:53"))}, "invalid AddrPort"},
	} {
		attrs := encode(tt.filter.encode()...)
		var e entry
		fatal.If(t, e.decode(append([]byte{unix.AF_INET, 0, 0, 0}, attrs...)))
		if !tt.filter.selects(&e.Connection) || e.Protocol != unix.IPPROTO_UDP || e.Src.String() != tt.src || e.Src.Port() != 53 {
			t.Errorf("%+v: decoded %+v", tt.filter, e.Connection)
		}
		for _, other := range []string{"10.96.0.1:54", "10.96.0.2:53"} {
			if (&Filter{Protocol: unix.IPPROTO_UDP, Src: netip.MustParseAddrPort(other)}).selects(&e.Connection) {
				t.Errorf("%+v passes %s", e.Connection, other)
			}
		}
	}
}

// Whatever comes from the socket, nothing beyond it is read.
func FuzzMessages(f *testing.F) {
	attrs := encode(Filter{Protocol: unix.IPPROTO_UDP, Src: netip.MustParseAddrPort("10.96.0.1:53")}.encode()...)
	size := byte(unix.SizeofNlMsghdr + nfgenLen + len(attrs))
	head := []byte{size, 0, 0, 0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, unix.AF_INET, 0, 0, 0}
	f.Add(append(head, attrs...))
	f.Add(append(head, attrs...)[:size-3])
	f.Add([]byte{18, 0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		var e entry
		_ = nlmsg.Each(b, func(m nlmsg.Message) error {
			return e.decode(m.Body)
		})
	})
}
