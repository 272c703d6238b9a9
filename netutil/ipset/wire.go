package ipset

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
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
	attrCIDR     = 3
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

// attributes returns a decoder of the attributes of a reply.
func attributes(m netlink.Message) (*netlink.AttributeDecoder, error) {
	if len(m.Data) < 4 {
		return nil, fmt.Errorf("a reply of %d bytes is too short", len(m.Data))
	}
	ad, err := netlink.NewAttributeDecoder(m.Data[4:])
	if err != nil {
		return nil, fmt.Errorf("reading a reply: %w", err)
	}
	ad.ByteOrder = binary.BigEndian
	return ad, nil
}

func decodeAddr(ad *netlink.AttributeDecoder) (a netip.Addr) {
	ad.Nested(func(n *netlink.AttributeDecoder) error {
		for n.Next() {
			a, _ = netip.AddrFromSlice(n.Bytes())
		}
		return nil
	})
	return a
}

func decodeEntry(ad *netlink.AttributeDecoder) Entry {
	var e Entry
	var second netip.Addr
	bits := -1
	for ad.Next() {
		switch ad.Type() {
		case attrIP:
			e.Addr = decodeAddr(ad)
		case attrPort:
			e.Port = ad.Uint16()
		case attrProto:
			e.Protocol = ad.Uint8()
		case attrIP2:
			second = decodeAddr(ad)
		case attrCIDR2:
			bits = int(ad.Uint8())
		}
	}
	if second.IsValid() {
		if bits < 0 {
			bits = second.BitLen()
		}
		e.Net = netip.PrefixFrom(second, bits)
	}
	return e
}
