// Package sockets lists the ports on which processes of this host receive packets.
package sockets

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/netutil/internal/nlmsg"
)

// A Listener is a socket that receives packets from anywhere: a listening one for TCP
// and SCTP, one without a peer for UDP.
type Listener struct {
	Protocol       uint8 // IANA number
	netip.AddrPort       // 0.0.0.0 or [::]: on all addresses
	DualStack      bool  // on [::], and receives IPv4 packets too
	Own            bool  // it belongs to this process
}

// Sizes and attributes of <linux/inet_diag.h>.
const (
	requestSize = 56 // inet_diag_req_v2
	messageSize = 72 // inet_diag_msg
	v6OnlyAttr  = 11 // INET_DIAG_SKV6ONLY
)

// States of sockets, <net/tcp_states.h>; a UDP socket without a peer is "closed".
const (
	stateClose  = 7
	stateListen = 10
)

// queries are the protocols to list, each with the state of its sockets.
var queries = []struct{ protocol, state uint8 }{
	{unix.IPPROTO_TCP, stateListen}, {unix.IPPROTO_UDP, stateClose}, {unix.IPPROTO_SCTP, stateListen},
}

// Listeners returns those of the network namespace of the caller. It leaves out
// sockets bound to an interface but to no address, and protocols that the kernel
// cannot list: that takes a module for each.
func Listeners() ([]Listener, error) {
	c, err := netlink.Dial(unix.NETLINK_SOCK_DIAG, nil)
	if err != nil {
		return nil, fmt.Errorf("listing listening sockets: %w", err)
	}
	defer c.Close()
	own := ownInodes()
	var list []Listener
	for _, k := range queries {
		for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
			msgs, err := c.Execute(request(family, k.protocol, k.state))
			if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) {
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("listing listening sockets: %w", err)
			}
			for _, m := range msgs {
				if l, ok := parse(m.Data, k.protocol, own); ok {
					list = append(list, l)
				}
			}
		}
	}
	return list, nil
}

func request(family, protocol, state uint8) netlink.Message {
	data := make([]byte, requestSize)
	data[0], data[1] = family, protocol
	binary.NativeEndian.PutUint32(data[4:], 1<<state)
	return netlink.Message{
		Header: netlink.Header{Type: unix.SOCK_DIAG_BY_FAMILY, Flags: netlink.Request | netlink.Dump},
		Data:   data,
	}
}

// parse decodes one inet_diag_msg.
func parse(b []byte, protocol uint8, own map[uint32]bool) (Listener, bool) {
	if len(b) < messageSize {
		return Listener{}, false
	}
	addr := netip.AddrFrom16([16]byte(b[8:24])).Unmap()
	if b[0] == unix.AF_INET {
		addr = netip.AddrFrom4([4]byte(b[8:12]))
	}
	port, iface := binary.BigEndian.Uint16(b[4:]), binary.NativeEndian.Uint32(b[40:])
	if port == 0 || iface != 0 && addr.IsUnspecified() {
		return Listener{}, false
	}
	return Listener{
		Protocol: protocol, AddrPort: netip.AddrPortFrom(addr, port),
		DualStack: addr == netip.IPv6Unspecified() && nlmsg.Uint8(nlmsg.Find(b[messageSize:], v6OnlyAttr)) == 0,
		Own:       own[binary.NativeEndian.Uint32(b[68:])],
	}, true
}

// ownInodes returns the inodes of the sockets of this process.
func ownInodes() map[uint32]bool {
	const dir = "/proc/self/fd"
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil // then no socket counts as ours
	}
	own := make(map[uint32]bool)
	for _, e := range entries {
		name, _ := os.Readlink(dir + "/" + e.Name()) // empty if it is closed by now
		number, isSocket := strings.CutPrefix(name, "socket:[")
		if n, err := strconv.ParseUint(strings.TrimSuffix(number, "]"), 10, 32); isSocket && err == nil {
			own[uint32(n)] = true
		}
	}
	return own
}
