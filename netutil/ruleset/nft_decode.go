package ruleset

import (
	"bytes"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/netutil/internal/nlmsg"
)

// An opaque is an expression that is not understood. The library's own listing leaves such
// ones out, so that what follows would be compared with what was loaded before.
type opaque struct {
	expr.Any
	name string
}

// expressions makes those that are understood.
var expressions = map[string]func() expr.Any{
	"bitwise": func() expr.Any { return &expr.Bitwise{} }, "cmp": func() expr.Any { return &expr.Cmp{} },
	"connlimit": func() expr.Any { return &expr.Connlimit{} }, "counter": func() expr.Any { return &expr.Counter{} },
	"ct": func() expr.Any { return &expr.Ct{} }, "fib": func() expr.Any { return &expr.Fib{} },
	"flow_offload": func() expr.Any { return &expr.FlowOffload{} }, "hash": func() expr.Any { return &expr.Hash{} },
	"immediate": func() expr.Any { return &expr.Immediate{} }, "limit": func() expr.Any { return &expr.Limit{} },
	"log": func() expr.Any { return &expr.Log{} }, "lookup": func() expr.Any { return &expr.Lookup{} },
	"masq": func() expr.Any { return &expr.Masq{} }, "meta": func() expr.Any { return &expr.Meta{} },
	"nat": func() expr.Any { return &expr.NAT{} }, "numgen": func() expr.Any { return &expr.Numgen{} },
	"objref": func() expr.Any { return &expr.Objref{} }, "payload": func() expr.Any { return &expr.Payload{} },
	"queue": func() expr.Any { return &expr.Queue{} }, "quota": func() expr.Any { return &expr.Quota{} },
	"range": func() expr.Any { return &expr.Range{} }, "redir": func() expr.Any { return &expr.Redir{} },
	"reject": func() expr.Any { return &expr.Reject{} },
}

// decodeRule decodes the expressions of a rule of a family, none left out.
func decodeRule(family byte, attrs []byte) (list []expr.Any) {
	for _, a := range nlmsg.Attrs(attrs) {
		name := nlmsg.String(nlmsg.Find(a.Value(), unix.NFTA_EXPR_NAME))
		list = append(list, decodeExpr(family, name, nlmsg.Find(a.Value(), unix.NFTA_EXPR_DATA)))
	}
	return list
}

func decodeExpr(family byte, name string, data []byte) expr.Any {
	switch name {
	case "notrack":
		return &expr.Notrack{}
	case "tproxy":
		return &expr.TProxy{}
	case "match":
		return &expr.Match{Name: nlmsg.String(nlmsg.Find(data, unix.NFTA_MATCH_NAME))}
	case "target":
		return &expr.Target{Name: nlmsg.String(nlmsg.Find(data, unix.NFTA_TARGET_NAME))}
	case "byteorder":
		return byteorder(data)
	}
	if expressions[name] == nil {
		return opaque{name: name}
	}
	e := expressions[name]()
	if expr.Unmarshal(family, data, e) != nil {
		return opaque{name: name}
	}
	if i, is := e.(*expr.Immediate); is && i.Register == unix.NFT_REG_VERDICT {
		v := &expr.Verdict{}
		if expr.Unmarshal(family, data, v) != nil {
			return opaque{name: name}
		}
		return v
	}
	return e
}

// byteorder decodes what the library does not.
func byteorder(data []byte) expr.Any {
	number := func(typ uint16) uint32 { return nlmsg.Uint32(nlmsg.Find(data, typ)) }
	return &expr.Byteorder{
		SourceRegister: number(unix.NFTA_BYTEORDER_SREG), DestRegister: number(unix.NFTA_BYTEORDER_DREG),
		Len: min(number(unix.NFTA_BYTEORDER_LEN), registerBytes), Size: number(unix.NFTA_BYTEORDER_SIZE),
	}
}

// elemKeyEnd is NFTA_SET_ELEM_KEY_END, <linux/netfilter/nf_tables.h>.
const elemKeyEnd = 10

// decodeElement decodes an element. A verdict it holds is left as attributes, see verdictIn.
func decodeElement(attrs []byte) nftables.SetElement {
	value := func(path ...uint16) []byte { return bytes.Clone(nlmsg.Find(attrs, path...)) }
	e := nftables.SetElement{
		Key:         value(unix.NFTA_SET_ELEM_KEY, unix.NFTA_DATA_VALUE),
		KeyEnd:      value(elemKeyEnd, unix.NFTA_DATA_VALUE),
		Val:         value(unix.NFTA_SET_ELEM_DATA, unix.NFTA_DATA_VALUE),
		IntervalEnd: nlmsg.Uint32(nlmsg.Find(attrs, unix.NFTA_SET_ELEM_FLAGS))&unix.NFT_SET_ELEM_INTERVAL_END != 0,
	}
	if e.Val == nil {
		e.Val = value(unix.NFTA_SET_ELEM_DATA, unix.NFTA_DATA_VERDICT)
	}
	return e
}
