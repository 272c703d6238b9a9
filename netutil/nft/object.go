package nft

import (
	"bytes"
	"slices"
	"time"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/netutil/internal/nlmsg"
)

// A Hook says where packets enter a base chain.
type Hook struct {
	Type     string // "nat" or "filter"
	Number   uint32 // unix.NF_INET_PRE_ROUTING and so on
	Priority int32
	Policy   uint32 // Accept or Drop
}

// Verdicts of base chains, <linux/netfilter.h>.
const (
	Drop   = 0
	Accept = 1
)

// A Chain is a chain without its rules.
type Chain struct {
	Name    string
	Hook    *Hook // nil: packets come by jumps only
	Comment string
}

// Equal reports whether two chains have the same name and hook.
func (c *Chain) Equal(o *Chain) bool {
	if c.Hook == nil || o.Hook == nil {
		return c.Name == o.Name && c.Hook == o.Hook
	}
	return c.Name == o.Name && *c.Hook == *o.Hook
}

// A Rule is a list of expressions, as the kernel writes it, and a comment.
type Rule struct {
	Exprs   []byte // attributes NFTA_LIST_ELEM, each a name and its data
	Comment string
}

// NewRule returns a rule of expressions.
func NewRule(family byte, comment string, exprs ...expr.Any) (Rule, error) {
	r := Rule{Comment: comment}
	for _, e := range exprs {
		b, err := []byte(nil), error(nil)
		if own, is := e.(raw); is {
			b = putBytes(putString(nil, unix.NFTA_EXPR_NAME, own.name), unix.NFTA_EXPR_DATA|unix.NLA_F_NESTED, own.data)
		} else if b, err = expr.Marshal(family, e); err != nil {
			return r, err
		}
		r.Exprs = putBytes(r.Exprs, unix.NFTA_LIST_ELEM|unix.NLA_F_NESTED, b)
	}
	return r, nil
}

// raw is an expression as the kernel takes it, for those that the library writes in another way.
type raw struct {
	expr.Any
	name string
	data []byte
}

// CtOriginal returns the expression that loads a part of the original direction of a packet's
// connection into a register: key is unix.NFT_CT_DST_IP, unix.NFT_CT_PROTO_DST and so on. Addresses have
// keys of their own since kernel 4.17; nft cannot list the older ones in concatenations.
func CtOriginal(register, key uint32) expr.Any {
	m := putUint32(nil, unix.NFTA_CT_DREG, register)
	m = putUint32(m, unix.NFTA_CT_KEY, key)
	return raw{name: "ct", data: putBytes(m, unix.NFTA_CT_DIRECTION, []byte{0})}
}

// Equal reports whether two rules mean the same. One may come from the kernel, which
// writes attributes in its own order, and may write or omit those that are zero.
func (r Rule) Equal(o Rule) bool {
	return r.Comment == o.Comment && slices.EqualFunc(expressions(r.Exprs), expressions(o.Exprs), sameExpr)
}

func expressions(list []byte) (all [][]byte) {
	for _, e := range nlmsg.Attrs(list) {
		all = append(all, e.Value())
	}
	return all
}

func sameExpr(a, b []byte) bool {
	data := func(e []byte) []byte { return nlmsg.Find(e, unix.NFTA_EXPR_DATA) }
	return exprName(a) == exprName(b) && sameData(exprName(a), data(a), data(b))
}

// flowOffload is the name of the expression that puts the connection of a packet into a flow table.
const flowOffload = "flow_offload"

func exprName(e []byte) string { return nlmsg.String(nlmsg.Find(e, unix.NFTA_EXPR_NAME)) }

// sameData compares the data of expressions, attribute by attribute.
func sameData(name string, a, b []byte) bool {
	var x, y [32]nlmsg.Attr // by type, of which there are fewer
	if !byType(a, x[:]) || !byType(b, y[:]) {
		return false
	}
	for i, p := range x {
		q := y[i]
		switch {
		// Numbers of sets serve in their own batch only.
		case name == "lookup" && i == unix.NFTA_LOOKUP_SET_ID, name == "dynset" && i == unix.NFTA_DYNSET_SET_ID:
		// The kernel does not mark all that is nested, and neither side does this one of dynset.
		case p.IsNested() || q.IsNested() || name == "dynset" && i == unix.NFTA_DYNSET_EXPR:
			if !sameData("", p.Value(), q.Value()) {
				return false
			}
		case name == "nat" && i == unix.NFTA_NAT_FLAGS:
			// That there is an address and a port, which the registers say too.
			if (nlmsg.Uint32(p.Value())^nlmsg.Uint32(q.Value()))&^(natMapIPs|natSpecified) != 0 {
				return false
			}
		case !bytes.Equal(p.Value(), q.Value()) && !(zero(p.Value()) && zero(q.Value())):
			return false
		}
	}
	return true
}

// byType puts the attributes of list at the index of their type, and reports whether there is room.
func byType(list []byte, into []nlmsg.Attr) bool {
	for typ, a := range nlmsg.Attrs(list) {
		if int(typ) >= len(into) {
			return false
		}
		into[typ] = a
	}
	return true
}

// NF_NAT_RANGE_MAP_IPS and NF_NAT_RANGE_PROTO_SPECIFIED, <linux/netfilter/nf_nat.h>.
const natMapIPs, natSpecified = 1, 2

func zero(b []byte) bool {
	return !slices.ContainsFunc(b, func(c byte) bool { return c != 0 })
}

// A Type is one of nft's data types, with its number there and its length in
// bytes: enum datatypes, include/datatype.h of nftables.
type Type struct{ Number, Len uint32 }

// The types of fields. Mark is a number in the host's byte order.
var (
	IPv4Addr    = Type{7, 4}
	IPv6Addr    = Type{8, 16}
	InetProto   = Type{12, 1}
	InetService = Type{13, 2}
	Mark        = Type{19, 4}
)

// Concat returns the type and length of fields that follow one another, each
// padded to 4 bytes.
func Concat(fields ...Type) Type {
	if len(fields) == 1 {
		return fields[0]
	}
	var c Type
	for _, f := range fields {
		c.Number = c.Number<<6 | f.Number
		c.Len += uint32(nlmsg.Align(int(f.Len)))
	}
	return c
}

// A Set is a set, or, where Data is not zero, a map; without its elements.
type Set struct {
	Name      string
	Key, Data Type
	Dynamic   bool   // rules add elements
	Timeouts  bool   // elements may have one
	Size      uint32 // most elements; 0: no limit
	Comment   string
}

// Equal reports whether two sets have the same definition, whatever their comments: to change one, a set would have to
// be made again without its elements.
func (s *Set) Equal(o *Set) bool {
	return s.Name == o.Name && s.Key == o.Key && s.Data == o.Data &&
		s.Dynamic == o.Dynamic && s.Timeouts == o.Timeouts && s.Size == o.Size
}

func (s *Set) flags() (flags uint32) {
	if s.Data.Len > 0 {
		flags |= unix.NFT_SET_MAP
	}
	if s.Dynamic {
		flags |= unix.NFT_SET_EVAL
	}
	if s.Timeouts {
		flags |= unix.NFT_SET_TIMEOUT
	}
	return flags
}

// An Element is one element of a set or map. Its bytes are as in the registers of
// the kernel: each field is padded to 4 bytes, numbers in network order except for marks.
type Element struct {
	Key     []byte
	Data    []byte // of a map
	Comment string

	// Of a set with timeouts; zero: none. The kernel counts ticks of some ms.
	Timeout time.Duration // how long it stays when it is renewed
	Expires time.Duration // how long it stays now; zero when it is added: Timeout
}

// Size returns an upper bound of what an element takes in a batch, with the headers
// of a message for its set.
func (e *Element) Size(set string) int { return 96 + len(set) + e.size() }

// size returns an upper bound of what an element takes in a message.
func (e *Element) size() int {
	return 88 + len(e.Key) + len(e.Data) + len(e.Comment)
}

// From <linux/netfilter/nf_tables.h>, and of user data from libnftnl's udata.h.
const (
	tableUserData    = 6  // NFTA_TABLE_USERDATA
	chainUserData    = 12 // NFTA_CHAIN_USERDATA
	commentUserData  = 0  // of tables, chains, rules and elements
	setKeyByteOrder  = 0  // NFTNL_UDATA_SET_KEYBYTEORDER
	setDataByteOrder = 1  // NFTNL_UDATA_SET_DATABYTEORDER
	setComment       = 7  // NFTNL_UDATA_SET_COMMENT
	hostEndian       = 1  // BYTEORDER_HOST_ENDIAN, include/datatype.h of nftables
	bigEndian        = 2  // BYTEORDER_BIG_ENDIAN
)

// appendComment appends user data: a type, a length, and a string with its NUL.
func appendComment(b []byte, typ byte, s string) []byte {
	if s == "" {
		return b
	}
	s = Comment(s)
	b = append(b, typ, byte(len(s)+1))
	return append(append(b, s...), 0)
}

// maxComment is the longest comment that nft takes, NFTNL_UDATA_COMMENT_MAXLEN less its NUL.
const maxComment = 127

// Comment returns a comment as the kernel gets it: truncated to what nft accepts.
func Comment(s string) string {
	if len(s) <= maxComment {
		return s
	}
	return s[:maxComment-len("...")] + "..."
}

// comment returns the comment in user data.
func comment(b []byte, typ byte) string {
	for len(b) >= 2 && len(b) >= 2+int(b[1]) {
		if b[0] == typ {
			return nlmsg.String(b[2 : 2+int(b[1])])
		}
		b = b[2+int(b[1]):]
	}
	return ""
}
