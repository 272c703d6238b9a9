package ruleset

import (
	"encoding/binary"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// payload loads part of a header, or notes that what is known of it is overwritten.
func (m *machine) payload(e *expr.Payload) {
	header := value{}
	switch e.Base {
	case expr.PayloadBaseNetworkHeader:
		header = networkHeader(m.packet)
	case expr.PayloadBaseTransportHeader:
		header = transportHeader(m.packet)
	}
	part := header.slice(int(e.Offset), int(e.Len))
	if e.OperationType == expr.PayloadWrite {
		m.done.Rewrites = m.done.Rewrites || part.differs(m.read(e.SourceRegister, int(e.Len)))
		return
	}
	m.load(e.DestRegister, part)
}

// differs reports whether other may have another value where v is known.
func (v value) differs(other value) bool {
	for i, b := range v.data {
		if (b^other.data[i]|^other.known[i])&v.known[i] != 0 {
			return true
		}
	}
	return false
}

// networkHeader is the packet's, of which the protocol and the addresses are known.
func networkHeader(p *Packet) value {
	if p.Src.Is6() {
		h := unknown(40)
		h.set(6, []byte{p.Protocol})
		h.set(8, p.Src.AsSlice())
		h.set(24, p.Dst.AsSlice())
		return h
	}
	h := unknown(20)
	h.set(9, []byte{p.Protocol})
	h.set(12, p.Src.AsSlice())
	h.set(16, p.Dst.AsSlice())
	return h
}

func transportHeader(p *Packet) value {
	h := unknown(4)
	for at, port := range map[int]uint16{0: p.SrcPort, 2: p.DstPort} {
		if port != 0 {
			h.set(at, binary.BigEndian.AppendUint16(nil, port))
		}
	}
	return h
}

func (v value) set(at int, b []byte) {
	copy(v.data[at:], b)
	for i := range b {
		v.known[at+i] = 0xff
	}
}

func number(n uint32) value { return known(binary.NativeEndian.AppendUint32(nil, n)) }

func (m *machine) meta(e *expr.Meta) {
	if e.SourceRegister {
		if e.Key == expr.MetaKeyMARK {
			m.done.Marks = true
		}
		return
	}
	m.load(e.Register, m.metaValue(e.Key))
}

func (m *machine) metaValue(key expr.MetaKey) value {
	p := m.packet
	switch key {
	case expr.MetaKeyL4PROTO:
		return known([]byte{p.Protocol})
	case expr.MetaKeyNFPROTO:
		if p.Src.Is6() {
			return known([]byte{unix.NFPROTO_IPV6})
		}
		return known([]byte{unix.NFPROTO_IPV4})
	case expr.MetaKeyPROTOCOL:
		if p.Src.Is6() {
			return known([]byte{0x86, 0xdd})
		}
		return known([]byte{0x08, 0x00})
	case expr.MetaKeyIIFNAME:
		return interfaceName(p.In, p.NoIn)
	case expr.MetaKeyOIFNAME:
		return interfaceName(p.Out, false)
	case expr.MetaKeyIIF:
		return interfaceIndex(p.InIndex, p.NoIn)
	case expr.MetaKeyOIF:
		return interfaceIndex(p.OutIndex, false)
	case expr.MetaKeyMARK:
		if !p.AnyMark && !m.done.Marks {
			return number(p.Mark)
		}
	}
	return unknown(16)
}

func interfaceName(name string, none bool) value {
	b := make([]byte, unix.IFNAMSIZ)
	copy(b, name)
	if name == "" && !none {
		return unknown(len(b))
	}
	return known(b)
}

func interfaceIndex(index uint32, none bool) value {
	if index == 0 && !none {
		return unknown(4)
	}
	return number(index)
}

// Bits of a connection's state and status, <linux/netfilter/nf_conntrack_common.h>.
const (
	stateNew   = 1 << 3
	statusDNAT = 1 << 5
)

func (m *machine) ct(e *expr.Ct) {
	if e.SourceRegister {
		return
	}
	v := unknown(16)
	switch e.Key {
	case expr.CtKeySTATE:
		v = number(stateNew)
	case expr.CtKeyDIRECTION:
		v = known([]byte{0})
	case expr.CtKeySTATUS:
		status := uint32(0)
		if m.packet.DNAT {
			status = statusDNAT
		}
		v = number(status)
		binary.NativeEndian.PutUint32(v.known, statusDNAT|1<<1|1<<2|1<<3) // no reply yet, not confirmed
	}
	m.load(e.Register, v)
}

// fib loads the type of an address.
func (m *machine) fib(e *expr.Fib) {
	v := unknown(16)
	if e.ResultADDRTYPE && !e.FlagIIF && !e.FlagOIF {
		isLocal := m.packet.DstLocal
		if e.FlagSADDR {
			isLocal = m.packet.SrcLocal
		}
		v = number(unix.RTN_UNICAST)
		if isLocal {
			v = number(unix.RTN_LOCAL)
		}
	}
	m.load(e.Register, v)
}
