// Package ipset talks to the kernel's IP sets over netlink, without the ipset
// program. A Conn changes Sets and their Entries. It knows the four types of sets whose members are single hosts,
// packs many members into one message, and keeps one socket.
//
//	ipset.go  types and errors, and how they are encoded
//	conn.go   changes and listings, requests and replies
//
// vishvananda/netlink sends one member a message: 54 ms for 2,000 members, against
// 0.9 ms here (medians of five, in one run); 10,000 services have far more of them.
package ipset

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/netutil/internal/nlmsg"
)

// A Type is a type of set, as the kernel names it.
type Type string

// The types this package can fill and list.
const (
	HashIP        Type = "hash:ip"
	HashIPPort    Type = "hash:ip,port"
	HashIPPortIP  Type = "hash:ip,port,ip"
	HashIPPortNet Type = "hash:ip,port,net"
)

// MaxName is the longest name of a set in bytes: IPSET_MAXNAMELEN without its
// NUL, <linux/netfilter/ipset/ip_set.h>.
const MaxName = 31

// A Set describes a set.
type Set struct {
	Name string // at most MaxName bytes
	Type Type
	IPv6 bool

	// MaxElem is how many members fit. The kernel reserves nothing for it.
	MaxElem uint32
}

// An Entry is one member of a set. Parts that the type does not have are zero.
type Entry struct {
	Addr     netip.Addr
	Protocol uint8 // IANA number, for types with a port
	Port     uint16

	// Net is the third part: a single address for hash:ip,port,ip. For
	// hash:ip,port,net it is masked and not of length 0, which the kernel
	// refuses: two of length 1 mean the same.
	Net netip.Prefix
}

// String returns the entry as the ipset program writes it.
func (e Entry) String() string {
	s := e.Addr.String()
	if e.Port != 0 {
		s += fmt.Sprintf(",%s:%d", protocolName(e.Protocol), e.Port)
	}
	switch {
	case !e.Net.IsValid():
		return s
	case e.Net.IsSingleIP():
		return s + "," + e.Net.Addr().String()
	}
	return s + "," + e.Net.String()
}

func protocolName(p uint8) string {
	switch p {
	case 6:
		return "tcp"
	case 17:
		return "udp"
	case 132:
		return "sctp"
	}
	return fmt.Sprint(p)
}

// An Error is an error of the kernel: IPSET_ERR_ in <linux/netfilter/ipset/ip_set.h>
// and the headers beside it, or an errno.
type Error int

// Errors that callers can handle.
const (
	ErrNotExist Error = 2    // ENOENT: no such set
	ErrExist    Error = 17   // EEXIST: a set of this name exists
	ErrBusy     Error = 4100 // IPSET_ERR_BUSY: a rule or another set uses it
	ErrMismatch Error = 4102 // IPSET_ERR_TYPE_MISMATCH: the sets to swap differ in type
	ErrFull     Error = 4352 // IPSET_ERR_HASH_FULL: MaxElem is reached
)

func (e Error) Error() string {
	switch e {
	case ErrNotExist:
		return "no such set"
	case ErrExist:
		return "the set exists"
	case ErrBusy:
		return "the set is in use"
	case ErrMismatch:
		return "the sets are of different types"
	case ErrFull:
		return "the set is full"
	case errProtocol:
		return "the kernel does not understand the message"
	case errFindType:
		return "the kernel has no such type of set"
	case errMaxSets:
		return "the kernel has no room for more sets"
	}
	return fmt.Sprintf("error %d of the kernel's ip sets", int(e))
}

const (
	errProtocol Error = 4097
	errFindType Error = 4098
	errMaxSets  Error = 4099
	// errPrivate is the first error of ip sets; smaller ones are errnos.
	errPrivate = 4096
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
	if b := a.As16(); a.Is4() {
		e.bytes(attrIPv4|unix.NLA_F_NET_BYTEORDER, b[12:]...)
	} else {
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
