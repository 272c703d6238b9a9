package ruleset

import (
	"testing"

	"github.com/google/nftables/expr"
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
	r := &nftRule{exprs: []expr.Any{
		&expr.Socket{Key: expr.SocketKeyMark, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: []byte{15, 0, 0, 0}, Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: make([]byte, 4)}, drop(),
	}}
	if got, want := r.String(), "socket ? 0x00000000/0x0f000000 drop"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
