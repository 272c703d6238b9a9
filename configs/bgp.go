package configs

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/decode"
)

// BGP says which routers are told of the addresses of services, and how. reference.toml says more.
type BGP struct {
	AS              uint32     // of this host; 0: there is no BGP
	RouterID        netip.Addr // IPv4; the zero Addr: the first IPv4 address of the host
	Port            uint16     // where routers connect to; 0: nowhere
	HoldTime        time.Duration
	GracefulRestart time.Duration // 0: none
	OnStop          string        // "graceful" or "withdraw"
	Communities     []string      // of all routes, as "64512:100", or one of wellKnownCommunities
	Peers           []BGPPeer
}

// A BGPPeer is a router.
type BGPPeer struct {
	Address         netip.Addr
	AS              uint32
	Port            uint16
	Source          netip.Addr    // the zero Addr: what the kernel chooses
	Multihop        int           // 2 to 255; 0: it is directly connected
	TTLSecurity     bool          // packets of it that passed a router are dropped (RFC 5082); it does the same
	PasswordFile    string        // absolute; empty: no password
	HoldTime        time.Duration // 0: that of BGP
	Communities     []string
	MED             uint32
	LocalPreference uint32 // 0: that of the routers
}

// Enabled reports whether there is a router to tell.
func (b *BGP) Enabled() bool { return b.NoBGP() == "" }

// bgpName is the name of its table, the one that holds tables in turn.
const bgpName = "bgp"

const (
	bgpPort        = 179
	minHoldTime    = 3 * time.Second     // RFC 4271 4.2
	maxHoldTime    = 65535 * time.Second // 16 bits of OPEN
	maxRestart     = 4095 * time.Second  // 12 bits, RFC 4724 3
	maxPeers       = 64
	maxCommunities = 100
)

// wellKnownCommunities are those of RFC 1997, 3765, 7999 and 8326 that have a name.
var wellKnownCommunities = []string{"graceful-shutdown", "blackhole", "no-export", "no-advertise", "no-export-subconfed", "no-peer"}

var (
	asNumber    = decode.Number[uint32](1, 4294967294).And(reservedAS)
	orNoAS      = decode.Number[uint32](0, 4294967294).And(reservedAS)
	portNumber  = decode.Number[uint16](1, 65535)
	communities = decode.Unique(decode.Matching(`two numbers of 0 to 65535 such as "64512:100", or `+source.Either(wellKnownCommunities), isCommunity).As(`^([0-9]{1,5}:[0-9]{1,5}|[a-z-]+)$`)).And(fewCommunities)
	routerID    = addrOrNone("an IPv4 address", func(a netip.Addr) bool { return a.Is4() && isHost(a) })
	peerAddress = decode.Addr.And(func(r *decode.Reader, a netip.Addr) bool {
		if !isHost(a) || a.IsLinkLocalUnicast() {
			r.Fault(fmt.Sprintf("%s is not the address of a router", a), "want a global address of it; sessions over link-local ones are not supported")
			return false
		}
		return true
	})
	multihop = decode.Number(0, 255).And(func(r *decode.Reader, n int) bool {
		if n == 1 {
			r.Fault("multihop is 1", "leave it out where the peer is directly connected, or want 2 to 255")
		}
		return n != 1
	})
)

// bgpSeconds is why times of BGP are whole seconds.
const bgpSeconds = "BGP counts no less"

// bgpFields are the keys of [bgp] but peers.
var bgpFields = []field{
	decode.Key("as", orNoAS, func(s *Settings) *uint32 { return &s.BGP.AS }),
	decode.Key("router_id", routerID, func(s *Settings) *netip.Addr { return &s.BGP.RouterID }),
	decode.Key("port", decode.Number[uint16](0, 65535).Or(bgpPort), func(s *Settings) *uint16 { return &s.BGP.Port }),
	decode.Key("hold_time", wholeSeconds(minHoldTime, maxHoldTime, bgpSeconds).Or(9*time.Second), func(s *Settings) *time.Duration { return &s.BGP.HoldTime }),
	decode.Key("graceful_restart", wholeSeconds(0, maxRestart, bgpSeconds).Or(2*time.Minute), func(s *Settings) *time.Duration { return &s.BGP.GracefulRestart }),
	decode.Key("on_stop", decode.Word("way to stop", "graceful", "withdraw").Or("graceful"), func(s *Settings) *string { return &s.BGP.OnStop }),
	decode.Key("communities", communities, func(s *Settings) *[]string { return &s.BGP.Communities }),
}

// peerFields are the keys of [[bgp.peers]].
var peerFields = []decode.Field[BGPPeer]{
	decode.Need(decode.Key("address", peerAddress, func(p *BGPPeer) *netip.Addr { return &p.Address })),
	decode.Need(decode.Key("as", asNumber, func(p *BGPPeer) *uint32 { return &p.AS })),
	decode.Key("port", portNumber.Or(bgpPort), func(p *BGPPeer) *uint16 { return &p.Port }),
	decode.Key("source", addrOrNone("an address of this host", isHost), func(p *BGPPeer) *netip.Addr { return &p.Source }),
	decode.Key("multihop", multihop, func(p *BGPPeer) *int { return &p.Multihop }),
	decode.Key("ttl_security", decode.Bool, func(p *BGPPeer) *bool { return &p.TTLSecurity }),
	decode.Key("password_file", decode.Matching("an absolute path", orEmpty(isPath)).As(orNone("/.*")), func(p *BGPPeer) *string { return &p.PasswordFile }),
	decode.Key("hold_time", wholeSeconds(0, maxHoldTime, bgpSeconds), func(p *BGPPeer) *time.Duration { return &p.HoldTime }),
	decode.Key("communities", communities, func(p *BGPPeer) *[]string { return &p.Communities }),
	decode.Key("med", decode.Number[uint32](0, 4294967295), func(p *BGPPeer) *uint32 { return &p.MED }),
	decode.Key("local_preference", decode.Number[uint32](0, 4294967295), func(p *BGPPeer) *uint32 { return &p.LocalPreference }),
}

var peer = decode.TableOf(peerFields, decode.Standard(peerFields))

// bgpTable is [bgp], with its peers.
var bgpTable = append(slices.Clone(bgpFields), field{Key: "peers", Schema: decode.List(peer).Schema, Read: func(r *decode.Reader, v any, s *Settings) {
	s.BGP.Peers, _ = decode.List(peer).Read(r, v)
}})

func readBGP(r *decode.Reader, v any, s *Settings) {
	if decode.Table(r, v, bgpTable, s) {
		s.BGP.check(r)
	}
}

// check reports what is wrong with what is right by itself.
func (b *BGP) check(r *decode.Reader) {
	fault := func(msg, hint string, warning bool, at ...any) {
		r.Problem(source.Problem{Path: source.At(at...), Msg: msg, Hint: hint, Warning: warning})
	}
	switch {
	case len(b.Peers) > maxPeers:
		fault(fmt.Sprintf("there are %d peers", len(b.Peers)), fmt.Sprintf("want %d at most", maxPeers), false, "peers")
		return
	case b.AS == 0 && len(b.Peers) > 0:
		fault("there are peers, and as is 0", "write the number of the network that this host is in", false, "as")
	case b.AS != 0 && len(b.Peers) == 0:
		fault("there are no peers, so nothing is announced", "write [[bgp.peers]]", true, "as")
	}
	seen := map[netip.Addr]int{}
	for i, p := range b.Peers {
		if first, twice := seen[p.Address]; twice && p.Address.IsValid() {
			fault(fmt.Sprintf("%s is already that of peers[%d]", p.Address, first), "", false, "peers", i, "address")
		} else {
			seen[p.Address] = i
		}
		p.check(b.AS, func(key, msg, hint string) { fault(msg, hint, false, "peers", i, key) })
	}
}

func (p *BGPPeer) check(own uint32, fault func(key, msg, hint string)) {
	if p.Source.IsValid() && p.Address.IsValid() && p.Source.Is4() != p.Address.Is4() {
		fault("source", "source is of the other family than address", "")
	}
	if p.HoldTime != 0 && p.HoldTime < minHoldTime {
		fault("hold_time", fmt.Sprintf("hold_time is %s", decode.ShortDuration(p.HoldTime)), `want "3s" at least, or "0s" for that of [bgp]`)
	}
	if p.TTLSecurity && p.Multihop != 0 {
		fault("ttl_security", "ttl_security drops what passed a router, and multihop is for a peer behind one", "leave one out")
	}
	if own == 0 || p.AS == 0 {
		return
	}
	if p.AS == own && p.Multihop != 0 {
		fault("multihop", "multihop does nothing for a peer of our own AS", "leave it out: packets to it may pass routers anyway")
	}
	if p.AS != own && p.LocalPreference != 0 {
		fault("local_preference", "local_preference is for peers of our own AS", "use med or communities")
	}
}

// reservedAS refuses numbers that no network can have.
func reservedAS(r *decode.Reader, n uint32) bool {
	if n == 23456 || n == 65535 { // RFC 6793 9, RFC 7300
		r.Fault(fmt.Sprintf("AS %d is reserved", n), "want the number of your network, or a private one such as 64512")
		return false
	}
	return true
}

func isHost(a netip.Addr) bool {
	return source.Unusable(a) == "" || a.IsLinkLocalUnicast() && a.Zone() == ""
}

// addrOrNone reads an address that ok accepts, or "".
func addrOrNone(want string, ok func(netip.Addr) bool) decode.Kind[netip.Addr] {
	parse := func(s string) netip.Addr { a, _ := netip.ParseAddr(s); return a }
	text := decode.Matching(want+`, or ""`, orEmpty(func(s string) bool { a := parse(s); return a.IsValid() && ok(a) }))
	return decode.To(text.As(`^[0-9a-fA-F:.]*$`), parse)
}

func isCommunity(s string) bool {
	if slices.Contains(wellKnownCommunities, s) {
		return true
	}
	a, b, both := strings.Cut(s, ":")
	_, err1 := strconv.ParseUint(a, 10, 16)
	_, err2 := strconv.ParseUint(b, 10, 16)
	return both && err1 == nil && err2 == nil
}

func fewCommunities(r *decode.Reader, list []string) bool {
	if len(list) > maxCommunities {
		r.Fault(fmt.Sprintf("there are %d communities", len(list)), fmt.Sprintf("want %d at most", maxCommunities))
	}
	return len(list) <= maxCommunities
}

// writePeers writes [[bgp.peers]].
func writePeers(b *bytes.Buffer, peers []BGPPeer) {
	for i := range peers {
		b.WriteString("\n[[bgp.peers]]\n")
		writeFields(b, peerFields, &peers[i])
	}
}

// NoBGP says why nothing is announced by BGP; empty: it is.
func (b *BGP) NoBGP() string {
	switch {
	case b.AS == 0:
		return "no [bgp] in svcproxy.toml"
	case len(b.Peers) == 0:
		return "no [[bgp.peers]] in svcproxy.toml"
	}
	return ""
}

// WarnOfAnnounce returns what of a service these settings do not announce. They can change at run time.
func (s *Settings) WarnOfAnnounce(svc *source.Service) []source.Problem {
	why := s.BGP.NoBGP()
	if svc.Announce&source.BGP == 0 || why == "" {
		return nil
	}
	return []source.Problem{{Path: source.At("announce"), Warning: true, Msg: "not announced by BGP: " + why, Hint: "tell this host its routers there (docs/many-hosts.md)"}}
}
