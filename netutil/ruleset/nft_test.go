package ruleset

import (
	"encoding/binary"
	"testing"

	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/netutil/internal/nlmsg"
	"svcproxy.dev/svcproxy/netutil/nft"
)

// nftPacket is what the rules of these tests meet.
func nftPacket() *Packet {
	p := packet("192.0.2.9", "10.0.0.1", 443)
	return &p
}

// dport443 compares the destination port.
func dport443() []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{1, 187}},
	}
}

func drop() expr.Any { return &expr.Verdict{Kind: expr.VerdictDrop} }

// What is loaded has no name here: socket mark & 0xf == 0 drop.
func TestTextOfUnnamedOperand(t *testing.T) {
	r := &nftRule{exprs: raw(t,
		&expr.Socket{Key: expr.SocketKeyMark, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: []byte{15, 0, 0, 0}, Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: make([]byte, 4)}, drop(),
	)}
	if got, want := r.String(), "socket ? 0x00000000/0x0f000000 drop"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// raw encodes expressions as the kernel lists them.
func raw(t *testing.T, list ...expr.Any) (all []nft.Expression) {
	t.Helper()
	for _, e := range list {
		b, err := expr.Marshal(unix.NFPROTO_IPV4, e)
		fatal.If(t, err)
		all = append(all, nft.Expression{Name: nlmsg.String(nlmsg.Find(b, unix.NFTA_EXPR_NAME)), Data: nlmsg.Find(b, unix.NFTA_EXPR_DATA)})
	}
	return all
}

// An expression that is not known loads what is not known: tcp dport 443 socket wildcard 0 drop.
func TestUnknownExpressionPoisonsItsRegister(t *testing.T) {
	list := append(dport443(), &expr.Socket{Key: expr.SocketKeyWildcard, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{0}}, drop())
	r := &nftRule{exprs: raw(t, list...)}
	if m, v := r.Eval(nftPacket()); m != Maybe || v.Kind != Drop {
		t.Errorf("match %d, %s", m, v.Kind)
	}
	if got, want := r.String(), "th dport 443 socket ? 0x00 drop"; got != want {
		t.Errorf("its text is %q, want %q", got, want)
	}
}

// What hands packets to a process of this host keeps them from our rules, also if it then
// accepts them.
func TestTProxyKeepsPacketsFromOurRules(t *testing.T) {
	list := append(dport443(), &expr.TProxy{Family: 2, TableFamily: 2, RegPort: 1}, &expr.Verdict{Kind: expr.VerdictAccept})
	r := &nftRule{exprs: raw(t, list...)}
	if m, v := r.Eval(nftPacket()); m != Yes || v.Kind != Translate {
		t.Errorf("match %d, %s", m, v.Kind)
	}
}

// A mark that was set is not known, whatever the rule does then.
func TestMarkAndAccept(t *testing.T) {
	set := []expr.Any{&expr.Immediate{Register: 1, Data: []byte{1, 0, 0, 0}}, &expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: 1}}
	for _, v := range []expr.VerdictKind{expr.VerdictAccept, expr.VerdictContinue, expr.VerdictReturn} {
		r := &nftRule{exprs: raw(t, append(set[:2:2], &expr.Verdict{Kind: v})...)}
		b := &Base{Chain: "c", Chains: map[string][]Rule{"c": {r}}}
		if _, p := b.Walk(*nftPacket(), nil); !p.AnyMark {
			t.Errorf("the mark is lost with verdict %d", v)
		}
	}
}

// "*" is for what no other element has.
func TestCatchAllMatchesTheRest(t *testing.T) {
	for _, ranges := range []bool{true, false} {
		s := newSet(ranges, []*element{
			{data: []byte{9}}, {key: []byte{0, 0, 0, 0}, isEnd: true}, {key: []byte{11, 0, 0, 0}, isEnd: true}, {key: []byte{10, 0, 0, 0}, data: []byte{1}},
		})
		for key, want := range map[[4]byte]byte{{192, 168, 0, 1}: 9, {10, 0, 0, 0}: 1} {
			if m, data := s.find(known(key[:])); m != Yes || len(data) == 0 || data[0] != want {
				t.Errorf("ranges %v: match %d of %v, %v", ranges, m, key, data)
			}
		}
	}
}

// The last range of a set need not end.
func TestLastRangeMayBeOpen(t *testing.T) {
	s := newSet(true, []*element{{key: []byte{240, 0, 0, 0}}, {key: []byte{0, 0, 0, 0}, isEnd: true}})
	for key, want := range map[[4]byte]Match{{255, 255, 255, 255}: Yes, {240, 0, 0, 0}: Yes, {239, 255, 255, 255}: No} {
		if m, _ := s.find(known(key[:])); m != want {
			t.Errorf("match %d of %v, want %d", m, key, want)
		}
	}
}

// A range of IPv6 addresses beside another field, of which parts are not compared one by one.
func TestConcatenatedRange(t *testing.T) {
	e := &element{key: make([]byte, 20), end: make([]byte, 20)}
	e.key[3], e.key[7], e.end[3], e.end[7] = 1, 9, 3, 2 // 0:1:0:9:: to 0:3:0:2::
	key, set := make([]byte, 20), newSet(false, []*element{e})
	for i, want := range map[byte]Match{2: Maybe, 9: No} {
		if key[3] = i; set.has(e, known(key)) != want {
			t.Errorf("of %d: %d, want %d", i, set.has(e, known(key)), want)
		}
	}
}

// Verdicts, which elements hold as attributes too, mean what nft prints.
func TestVerdicts(t *testing.T) {
	tests := []struct {
		kind expr.VerdictKind
		want Verdict
		text string
	}{
		{expr.VerdictAccept, Verdict{Kind: Accept}, "accept"},
		{expr.VerdictDrop, Verdict{Kind: Drop}, "drop"},
		{expr.VerdictReturn, Verdict{Kind: Return}, "return"},
		{expr.VerdictQueue, Verdict{Kind: Queue}, "queue"},
		{expr.VerdictContinue, Verdict{}, "continue"},
		{expr.VerdictBreak, Verdict{}, "continue"},
		{expr.VerdictJump, Verdict{Kind: Jump, Chain: "c"}, "jump c"},
		{expr.VerdictGoto, Verdict{Kind: GoTo, Chain: "c"}, "goto c"},
	}
	for _, tt := range tests {
		e := netlink.NewAttributeEncoder()
		e.ByteOrder = binary.BigEndian
		e.Uint32(unix.NFTA_VERDICT_CODE, uint32(tt.kind))
		e.String(unix.NFTA_VERDICT_CHAIN, "c")
		data, err := e.Encode()
		fatal.If(t, err)
		if got, text := verdictIn(data); got != tt.want || text != tt.text {
			t.Errorf("%d: verdict %+v, %q, want %+v, %q", tt.kind, got, text, tt.want, tt.text)
		}
	}
	if got, _ := verdictIn(nil); got != (Verdict{}) {
		t.Errorf("without a code: %+v, want that of continue", got)
	}
}
