package ipset

import (
	"encoding/binary"
	"net/netip"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/netutil/internal/nlmsg"
)

// Commands and attributes, <linux/netfilter/ipset/ip_set.h>.
const (
	cmdCreate  = 2
	cmdDestroy = 3
	cmdFlush   = 4
	cmdSwap    = 6
	cmdList    = 7
	cmdAdd     = 9
	cmdDel     = 10
	cmdType    = 13

	attrProtocol    = 1
	attrSetName     = 2
	attrTypeName    = 3 // the second name of cmdSwap
	attrRevision    = 4
	attrFamily      = 5
	attrFlags       = 6
	attrData        = 7
	attrADT         = 8
	attrLineno      = 9
	attrRevisionMin = 10

	attrIP       = 1
	attrPort     = 4
	attrTimeout  = 6
	attrProto    = 7
	attrHashSize = 18
	attrMaxElem  = 19
	attrIP2      = 20
	attrCIDR2    = 21

	attrIPv4 = 1
	attrIPv6 = 2

	// protocolVersion is supported by every kernel since 2.6.39; 7, since 4.20,
	// adds nothing we need.
	protocolVersion = 6

	flagListNames = 1 << 1 // IPSET_FLAG_LIST_SETNAME
)

// An encoder appends netlink attributes to a message. All integers of ip sets
// are big endian, and their attributes say so.
type encoder struct{ b []byte }

func (e *encoder) header(typ uint16, length int) {
	e.b = binary.NativeEndian.AppendUint16(e.b, uint16(4+length))
	e.b = binary.NativeEndian.AppendUint16(e.b, typ)
}

func (e *encoder) bytes(typ uint16, v ...byte) {
	e.header(typ, len(v))
	e.b = append(e.b, v...)
	for len(e.b)%4 != 0 {
		e.b = append(e.b, 0)
	}
}

func (e *encoder) text(typ uint16, v string) { e.bytes(typ, append([]byte(v), 0)...) }

func (e *encoder) uint16(typ uint16, v uint16) {
	e.bytes(typ|unix.NLA_F_NET_BYTEORDER, byte(v>>8), byte(v))
}

func (e *encoder) uint32(typ uint16, v uint32) {
	e.bytes(typ|unix.NLA_F_NET_BYTEORDER, byte(v>>24), byte(v>>16), byte(v>>8), byte(v))
}

// open begins a nested attribute and returns its offset, which close takes to end it.
func (e *encoder) open(typ uint16) int {
	e.header(typ|unix.NLA_F_NESTED, 0)
	return len(e.b) - 4
}

func (e *encoder) close(at int) {
	binary.NativeEndian.PutUint16(e.b[at:], uint16(len(e.b)-at))
}

func (e *encoder) addr(typ uint16, a netip.Addr) {
	at := e.open(typ)
	if a.Is4() {
		b := a.As4()
		e.bytes(attrIPv4|unix.NLA_F_NET_BYTEORDER, b[:]...)
	} else {
		b := a.As16()
		e.bytes(attrIPv6|unix.NLA_F_NET_BYTEORDER, b[:]...)
	}
	e.close(at)
}

// entry appends one member, as line n of the message.
func (e *encoder) entry(n int, m Entry) {
	at := e.open(attrData)
	e.addr(attrIP, m.Addr)
	if m.Port != 0 {
		e.uint16(attrPort, m.Port)
		e.bytes(attrProto, m.Protocol)
	}
	if m.Net.IsValid() {
		e.addr(attrIP2, m.Net.Addr())
		if !m.Net.IsSingleIP() {
			e.bytes(attrCIDR2, byte(m.Net.Bits()))
		}
	}
	e.uint32(attrLineno, uint32(n))
	e.close(at)
}

// newMessage begins a message about a set; an empty name is omitted. Its
// first four bytes are struct nfgenmsg.
func newMessage(name string) *encoder {
	e := &encoder{b: []byte{unix.AF_INET, unix.NFNETLINK_V0, 0, 0}}
	e.bytes(attrProtocol, protocolVersion)
	if name != "" {
		e.text(attrSetName, name)
	}
	return e
}

// attributes returns those of a reply, which begins with struct nfgenmsg.
func attributes(m netlink.Message) []byte { return m.Data[min(4, len(m.Data)):] }

func decodeAddr(b []byte) netip.Addr {
	a, ok := netip.AddrFromSlice(nlmsg.Find(b, attrIPv4))
	if !ok {
		a, _ = netip.AddrFromSlice(nlmsg.Find(b, attrIPv6))
	}
	return a
}

func decodeEntry(b []byte) Entry {
	e := Entry{
		Addr: decodeAddr(nlmsg.Find(b, attrIP)),
		Port: nlmsg.Uint16(nlmsg.Find(b, attrPort)), Protocol: nlmsg.Uint8(nlmsg.Find(b, attrProto)),
	}
	if second := decodeAddr(nlmsg.Find(b, attrIP2)); second.IsValid() {
		bits := second.BitLen()
		if cidr := nlmsg.Find(b, attrCIDR2); cidr != nil {
			bits = int(nlmsg.Uint8(cidr))
		}
		e.Net = netip.PrefixFrom(second, bits)
	}
	return e
}
