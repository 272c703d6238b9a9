package l2

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
)

// sampleHost has eth0 and eth1 on one network, a tunnel, a dummy device, and an address on
// each; eth2 is down and eth3 has no carrier.
func sampleHost() *host {
	h := &host{devices: map[int]*device{}, held: map[netip.Addr][]holding{}}
	for i, name := range []string{"lo", "eth0", "eth1", "eth2", "eth3", "wg0", "dummy0"} {
		h.devices[i+1] = &device{
			link:     link{index: i + 1, name: name, mac: "\x02\x00\x00\x00\x00" + string(rune('0'+i))},
			ethernet: strings.HasPrefix(name, "eth"), up: name != "eth2", carrier: name != "eth2" && name != "eth3",
		}
	}
	for _, a := range []struct {
		cidr  string
		index int
	}{
		{"127.0.0.1/8", 1}, {"10.1.0.9/32", 1}, {"10.1.0.1/24", 2}, {"2001:db8::1/64", 2}, {"10.1.0.2/24", 3},
		{"10.2.0.1/24", 4}, {"10.3.0.1/24", 5}, {"10.4.0.1/24", 6}, {"10.1.0.10/32", 7}, {"2001:db8::10/128", 7},
		{"10.1.0.20/32", 2}, {"10.1.0.20/32", 4}, {"10.9.0.1/32", 7}, {"10.3.0.7/32", 7}, {"10.2.0.7/32", 7},
	} {
		p := netip.MustParsePrefix(a.cidr)
		h.held[p.Addr()] = append(h.held[p.Addr()], holding{index: a.index})
		if p.Bits() < p.Addr().BitLen() {
			h.subnets = append(h.subnets, subnet{p.Masked(), a.index})
		}
	}
	h.held[netip.MustParseAddr("2001:db8::2")] = []holding{{index: 2, tentative: true}}
	h.held[netip.MustParseAddr("2001:db8::3")] = []holding{{index: 2, tentative: true, duplicate: true}}
	h.isLocal = func(a netip.Addr) (bool, error) { return a == netip.MustParseAddr("10.1.0.99"), nil }
	h.arpIgnore = func(string) (int, error) { return 0, nil }
	return h
}

func wantAttachments(t *testing.T, h *host, addr, want string) {
	t.Helper()
	var got []string
	for _, p := range h.attachments(netip.MustParseAddr(addr)) {
		s := p.link.name
		if p.err != nil {
			s = strings.TrimPrefix(s+": ", ": ") + p.err.Error()
		}
		got = append(got, s)
	}
	if s := strings.Join(got, " | "); s != want {
		t.Errorf("%s\n got: %s\nwant: %s", addr, s, want)
	}
}

func TestAttachments(t *testing.T) {
	h := sampleHost()
	for _, tt := range []struct{ addr, want string }{
		// Of a link.
		{"10.1.0.1", "eth0"},
		{"2001:db8::1", "eth0"},
		{"10.1.0.20", "eth0 | eth2: eth2 is down"},
		{"10.2.0.1", "eth2: eth2 is down"},
		{"10.3.0.1", "eth3: eth3 has no carrier"},
		{"2001:db8::2", "eth0: duplicate address detection has not ended"},
		{"2001:db8::3", "eth0: another host has it, as duplicate address detection found"},
		// Local without a link.
		{"10.1.0.9", "eth0 | eth1"},
		{"10.1.0.10", "eth0 | eth1"},
		{"10.1.0.99", "eth0 | eth1"},
		{"10.2.0.7", "eth2: eth2 is down"},
		{"10.3.0.7", "eth3: eth3 has no carrier"},
		{"10.4.0.1", "no link of this host is in its network: routers have to know that it is here"},
		{"10.9.0.1", "no link of this host is in its network: routers have to know that it is here"},
		{"2001:db8::10", "only dummy0 has it, and this host answers for it on no other link; ip address add 2001:db8::10/128 dev eth0"},
		// Of another host, or of none.
		{"10.1.0.77", "no link of this host has it, so this host does not answer for it; ip address add 10.1.0.77/32 dev eth0"},
		{"10.77.0.1", "no link of this host has it, so this host does not answer for it; ip address add 10.77.0.1/32 dev LINK"},
		{"2001:db8::77", "no link of this host has it, so this host does not answer for it; ip address add 2001:db8::77/128 dev eth0"},
		{"127.0.0.1", "it is not an address that neighbours could use"},
		{"224.0.0.1", "it is not an address that neighbours could use"},
		{"ff02::1", "it is not an address that neighbours could use"},
		{"::", "it is not an address that neighbours could use"},
	} {
		wantAttachments(t, h, tt.addr, tt.want)
	}
	if p := h.attachments(netip.Addr{}); len(p) != 1 || p[0].err == nil {
		t.Errorf("of no address: %v", p)
	}
}

// The kernel answers for addresses of other links by arp_ignore; for those of the link unless it is 8.
func TestAttachmentsByARPIgnore(t *testing.T) {
	h := sampleHost()
	for _, tt := range []struct {
		ignore               int
		ofLink, ofLo, routed bool
	}{
		{0, true, true, true},
		{1, true, false, false},
		{2, true, false, false},
		{3, true, true, false},
		{4, true, true, true},
		{8, false, false, false},
	} {
		h.arpIgnore = func(string) (int, error) { return tt.ignore, nil }
		for addr, want := range map[string]bool{"10.1.0.1": tt.ofLink, "10.1.0.9": tt.ofLo, "10.1.0.99": tt.routed} {
			p := h.attachments(netip.MustParseAddr(addr))[0]
			if p.link.name != "eth0" || (p.err == nil) != want {
				t.Errorf("arp_ignore %d, %s: on %q with %v, announced: want %v", tt.ignore, addr, p.link.name, p.err, want)
			}
		}
		wantAttachments(t, h, "2001:db8::1", "eth0") // no ARP
	}
	h.arpIgnore = func(string) (int, error) { return 1, nil }
	const why = ": this host does not answer ARP for it on eth0: net.ipv4.conf.eth0.arp_ignore, or that of all, is 1"
	wantAttachments(t, h, "10.1.0.9", "eth0"+why+" | eth1"+strings.ReplaceAll(why, "eth0", "eth1"))
}

func TestAttachmentsThatAreNotKnown(t *testing.T) {
	h := sampleHost()
	h.isLocal = func(netip.Addr) (bool, error) { return false, errors.New("no netlink") }
	wantAttachments(t, h, "10.1.0.77", "whether this host has it is not known: no netlink")
	h.arpIgnore = func(string) (int, error) { return 0, errors.New("no sysctl") }
	wantAttachments(t, h, "10.1.0.1", "eth0: whether this host answers ARP for it is not known: no sysctl")
}
