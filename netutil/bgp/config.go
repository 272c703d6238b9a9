package bgp

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"reflect"
	"strconv"
	"strings"
	"time"
)

// Limits and defaults.
const (
	DefaultPort     = 179
	DefaultHoldTime = 9 * time.Second

	maxHoldTime    = 65535 * time.Second // 16 bits of OPEN, RFC 4271 4.2
	minHoldTime    = 3 * time.Second     // the least that a speaker may accept, RFC 4271 4.2
	maxRestart     = 4095 * time.Second  // 12 bits, RFC 4724 3
	maxPassword    = 80                  // TCP_MD5SIG_MAXKEYLEN, <linux/tcp.h>
	maxCommunities = 100                 // 400 bytes of an UPDATE; ours, so that one fits whatever else is in it
	asTrans        = 23456               // RFC 6793 9
)

// A Config is what is the same for all peers.
type Config struct {
	AS       uint32     // of this host: 1 to 4294967294, not 23456 nor 65535
	RouterID netip.Addr // an IPv4 address, unique in the AS; not 0.0.0.0

	// ListenPort is where routers may connect to: 1 to 65535 on all addresses of both
	// families, 0: DefaultPort, -1: nowhere, all connections are our own.
	ListenPort int

	// HoldTime is after how long without a message a session is ended, by the side that has the
	// shorter one: 0: DefaultHoldTime, else 3 s to 65535 s, whole seconds. A keepalive is sent each third of it.
	HoldTime time.Duration

	// GracefulRestart is for how long a router is asked to keep our routes when the session is
	// lost: 1 s to 4095 s, whole seconds; 0: not at all.
	GracefulRestart time.Duration

	Peers []Peer // at least one; no two of the same address

	// Log has changes of sessions, and what GoBGP warns of. nil: slog.Default().
	Log *slog.Logger

	// OnChange is called when the state of a peer has changed, from one goroutine, with the state it has
	// then: changes that come while it runs are merged. It may take its time, but Run waits for it. May be nil.
	OnChange func(PeerState)
}

// A Peer is a router, or a route server, that gets our routes.
type Peer struct {
	Address netip.Addr // unicast; a link-local one is not supported
	AS      uint32     // of the peer; as Config.AS, which makes the session internal (iBGP)
	Port    uint16     // 0: DefaultPort

	// Source is the address of ours to connect from and to be connected to, of the
	// same family as Address. The zero Addr: what the kernel chooses.
	Source netip.Addr

	// Multihop is the TTL of packets to a peer of another AS: 2 to 255 if there are
	// routers between; 0: 1, directly connected. Those to a peer of our own AS have the system's.
	Multihop int

	// TTLSecurity makes the kernel ignore packets from the peer that passed a router (RFC 5082). The
	// peer must do the same, as they leave with a TTL of 255. Not together with Multihop.
	TTLSecurity bool

	HoldTime time.Duration // 0: that of Config

	// Password signs each TCP segment by MD5 (RFC 2385): 1 to 80 bytes, without a NUL. "": no signatures.
	// Both sides must have the same: the kernel drops what is signed otherwise, and answers nothing.
	Password string

	Communities     []Community // added to each route; at most 100
	MED             uint32      // multi-exit discriminator, lower is better; 0: not sent, which routers take as 0
	LocalPreference uint32      // higher is better; 0: 100; only for a peer of our own AS
}

// A Community is a mark on a route (RFC 1997).
type Community uint32

// GracefulShutdown asks routers to prefer any other route (RFC 8326).
const GracefulShutdown Community = 65535 << 16

// wellKnown are the communities of RFC 1997, 3765, 7999 and 8326 by name.
var wellKnown = map[string]Community{
	"graceful-shutdown":   GracefulShutdown,
	"blackhole":           65535<<16 | 666,
	"no-export":           0xffffff01,
	"no-advertise":        0xffffff02,
	"no-export-subconfed": 0xffffff03,
	"no-peer":             0xffffff04,
}

// ParseCommunity reads "64512:100", both numbers 0 to 65535, or a name: graceful-shutdown,
// blackhole, no-export, no-advertise, no-export-subconfed or no-peer.
func ParseCommunity(s string) (Community, error) {
	if c, ok := wellKnown[s]; ok {
		return c, nil
	}
	first, second, _ := strings.Cut(s, ":")
	a, err1 := strconv.ParseUint(first, 10, 16)
	b, err2 := strconv.ParseUint(second, 10, 16)
	if err1 != nil || err2 != nil {
		return 0, fmt.Errorf("%q is not a community; want two numbers of 0 to 65535 as in 64512:100, or a name as no-export", s)
	}
	return Community(a<<16 | b), nil
}

// String returns the two numbers, as "64512:100".
func (c Community) String() string { return fmt.Sprintf("%d:%d", uint32(c)>>16, uint32(c)&0xffff) }

// withDefaults returns a copy in which no value means a default.
func (c Config) withDefaults() Config {
	c.ListenPort = cmp.Or(c.ListenPort, DefaultPort)
	c.HoldTime = cmp.Or(c.HoldTime, DefaultHoldTime)
	c.Log = cmp.Or(c.Log, slog.Default())
	c.Peers = append([]Peer(nil), c.Peers...)
	for i := range c.Peers {
		p := &c.Peers[i]
		p.Address, p.Source = p.Address.Unmap(), p.Source.Unmap()
		p.Port = cmp.Or(p.Port, DefaultPort)
		p.HoldTime = cmp.Or(p.HoldTime, c.HoldTime)
	}
	return c
}

// Validate returns all that is wrong, joined, or nil.
func (c Config) Validate() error {
	c = c.withDefaults()
	errs := []error{checkAS(c.AS), checkHoldTime(c.HoldTime), checkRestart(c.GracefulRestart)}
	if !c.RouterID.Is4() || c.RouterID.IsUnspecified() || c.RouterID.IsMulticast() {
		errs = append(errs, fmt.Errorf("router ID %v: want an IPv4 address such as 192.0.2.1", c.RouterID))
	}
	if c.ListenPort < -1 || c.ListenPort > 65535 {
		errs = append(errs, fmt.Errorf("listen port %d: want 1 to 65535, or -1 for none", c.ListenPort))
	}
	if len(c.Peers) == 0 {
		errs = append(errs, errors.New("no peers"))
	}
	seen := map[netip.Addr]bool{}
	for _, p := range c.Peers {
		if seen[p.Address] {
			errs = append(errs, fmt.Errorf("peer %v is there twice", p.Address))
		}
		seen[p.Address] = true
		if err := p.validate(c.AS); err != nil {
			errs = append(errs, fmt.Errorf("peer %v: %w", p.Address, err))
		}
	}
	return errors.Join(errs...)
}

// validate returns all that is wrong with a peer with its defaults.
func (p Peer) validate(ourAS uint32) error {
	errs := []error{checkAS(p.AS), checkHoldTime(p.HoldTime), p.checkAddresses(), p.checkTTL(ourAS)}
	if len(p.Password) > maxPassword || strings.Contains(p.Password, "\x00") {
		errs = append(errs, fmt.Errorf("the password has %d bytes or a NUL; want at most %d bytes, and none", len(p.Password), maxPassword))
	}
	if len(p.Communities) > maxCommunities {
		errs = append(errs, fmt.Errorf("%d communities; want at most %d", len(p.Communities), maxCommunities))
	}
	if p.LocalPreference != 0 && p.AS != ourAS {
		errs = append(errs, fmt.Errorf("a local preference is for peers of our own AS %d only: use med or communities", ourAS))
	}
	return errors.Join(errs...)
}

func (p Peer) checkAddresses() error {
	a := p.Address
	switch {
	case !a.IsValid() || a.IsUnspecified() || a.IsMulticast():
		return errors.New("want the address of a router")
	case a.Zone() != "" || a.IsLinkLocalUnicast():
		return errors.New("a link-local address is not supported; use a global one of the interface")
	case p.Source.IsValid() && p.Source.Is4() != a.Is4():
		return fmt.Errorf("source %v is of the other family", p.Source)
	case p.Source.IsValid() && (p.Source.Zone() != "" || p.Source.IsUnspecified() || p.Source.IsMulticast()):
		return fmt.Errorf("source %v: want an address of this host", p.Source)
	}
	return nil
}

func (p Peer) checkTTL(ourAS uint32) error {
	switch {
	case p.Multihop < 0 || p.Multihop == 1 || p.Multihop > 255:
		return fmt.Errorf("multihop %d: want 2 to 255, or 0 for a directly connected peer", p.Multihop)
	case p.Multihop != 0 && p.AS == ourAS:
		return fmt.Errorf("multihop is for peers of another AS than our own %d, whose packets have a TTL of 1 else", ourAS)
	case p.Multihop != 0 && p.TTLSecurity:
		return errors.New("multihop and TTL security exclude each other")
	}
	return nil
}

func checkAS(as uint32) error {
	if as == 0 || as == asTrans || as == 1<<16-1 || as == 1<<32-1 {
		return fmt.Errorf("AS %d: want 1 to 4294967294, and neither 23456 nor 65535, which are reserved", as)
	}
	return nil
}

func checkHoldTime(d time.Duration) error {
	if d < minHoldTime || d > maxHoldTime || d%time.Second != 0 {
		return fmt.Errorf("hold time %v: want 3s to 65535s, in whole seconds", d)
	}
	return nil
}

func checkRestart(d time.Duration) error {
	if d < 0 || d > maxRestart || d%time.Second != 0 {
		return fmt.Errorf("graceful restart %v: want 1s to 4095s, in whole seconds, or 0s for none", d)
	}
	return nil
}

// sameSession reports whether a session with p does for o too.
func (p Peer) sameSession(o Peer) bool {
	p.Communities, p.MED, p.LocalPreference = nil, 0, 0
	o.Communities, o.MED, o.LocalPreference = nil, 0, 0
	return reflect.DeepEqual(p, o)
}
