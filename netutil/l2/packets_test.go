package l2

import (
	"encoding/hex"
	"net/netip"
	"testing"

	"svcproxy.dev/svcproxy/internal/fatal"
)

func TestPackets(t *testing.T) {
	mac := []byte{2, 0, 0, 0, 0, 9}
	arps, err := gratuitousARP(mac, netip.MustParseAddr("192.0.2.10"))
	fatal.If(t, err)
	plain, err := advertisement(mac, netip.MustParseAddr("2001:db8::10"), false)
	fatal.If(t, err)
	router, err := advertisement(mac, netip.MustParseAddr("2001:db8::10"), true)
	fatal.If(t, err)
	for _, tt := range []struct {
		name string
		got  []byte
		want string
	}{
		// Ethernet, IPv4, lengths 6 and 4, operation; sender and target: link-layer address, address.
		{"request", arps[0], "0001" + "0800" + "06" + "04" + "0001" + "020000000009" + "c000020a" + "ffffffffffff" + "c000020a"},
		{"reply", arps[1], "0001" + "0800" + "06" + "04" + "0002" + "020000000009" + "c000020a" + "020000000009" + "c000020a"},
		// Type, code, checksum; flags; target; option 2 (target's link-layer address) of length 1.
		{"advertisement", plain, "88" + "00" + "0000" + "20000000" + "20010db8000000000000000000000010" + "0201" + "020000000009"},
		{"advertisement of a router", router, "88" + "00" + "0000" + "a0000000" + "20010db8000000000000000000000010" + "0201" + "020000000009"},
	} {
		wantText(t, tt.name, hex.EncodeToString(tt.got), tt.want)
	}
	if len(arps) != 2 {
		t.Errorf("%d ARP packets", len(arps))
	}
}

// An address of the wrong family is an error, and not a packet.
func TestPacketsOfTheOtherFamily(t *testing.T) {
	mac := []byte{2, 0, 0, 0, 0, 9}
	if p, err := gratuitousARP(mac, netip.MustParseAddr("2001:db8::10")); err == nil {
		t.Errorf("%x", p)
	}
	if b, err := advertisement(mac, netip.MustParseAddr("192.0.2.10"), false); err == nil {
		t.Errorf("%x", b)
	}
}
