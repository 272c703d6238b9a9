package nft

import (
	"bytes"
	"testing"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/netutil/internal/nlmsg"
)

func ruleOf(t *testing.T, comment string, exprs ...expr.Any) Rule {
	t.Helper()
	r, err := NewRule(unix.NFPROTO_IPV4, comment, exprs...)
	fatal.If(t, err)
	return r
}

func TestRuleEqual(t *testing.T) {
	look := func(name string, id uint32, invert bool) *expr.Lookup {
		return &expr.Lookup{SourceRegister: 1, SetName: name, SetID: id, Invert: invert}
	}
	goTo := func(chain string) *expr.Verdict { return &expr.Verdict{Kind: expr.VerdictGoto, Chain: chain} }
	base := ruleOf(t, "c", look("s", 1, false), goTo("x"))
	unmarked := Rule{Comment: "c", Exprs: bytes.Clone(base.Exprs)}
	for i := range unmarked.Exprs { // as the kernel writes a verdict: nested, but not marked so
		if unmarked.Exprs[i] == 0x80 {
			unmarked.Exprs[i] = 0
		}
	}
	nat := func(specified bool) *expr.NAT {
		return &expr.NAT{Type: expr.NATTypeDestNAT, Family: 2, RegAddrMin: 1, RegProtoMin: 9, Specified: specified}
	}
	tests := []struct {
		name string
		a, b Rule
		want bool
	}{
		{"the same", base, ruleOf(t, "c", look("s", 1, false), goTo("x")), true},
		{"another number of a set", base, ruleOf(t, "c", look("s", 7, false), goTo("x")), true},
		{"nested attributes without a mark", base, unmarked, true},
		{"flags that the kernel derives", ruleOf(t, "", nat(false)), ruleOf(t, "", nat(true)), true},
		{"inverted", base, ruleOf(t, "c", look("s", 1, true), goTo("x")), false},
		{"another set", base, ruleOf(t, "c", look("z", 1, false), goTo("x")), false},
		{"another chain", base, ruleOf(t, "c", look("s", 1, false), goTo("z")), false},
		{"another comment", base, ruleOf(t, "d", look("s", 1, false), goTo("x")), false},
		{"another expression", base, ruleOf(t, "c", &expr.Counter{}, goTo("x")), false},
		{"one more", base, ruleOf(t, "c", look("s", 1, false), goTo("x"), &expr.Counter{}), false},
		{"cut off", base, Rule{Comment: "c", Exprs: base.Exprs[:len(base.Exprs)-5]}, false},
	}
	for _, tt := range tests {
		if got := tt.a.Equal(tt.b); got != tt.want {
			t.Errorf("%s: got %v, want %v", tt.name, got, tt.want)
		}
		if got := tt.b.Equal(tt.a); got != tt.want {
			t.Errorf("%s, other way round: got %v, want %v", tt.name, got, tt.want)
		}
	}
}

// What the kernel sends is its own, but a table is anybody's to fill.
func FuzzDecode(f *testing.F) {
	b := NewBatch(Table{unix.NFPROTO_IPV4, "t"})
	b.AddSet(&Set{Name: "s", Key: Concat(IPv4Addr, InetService), Comment: "c"})
	b.AddElement("s", Element{Key: []byte{1, 2, 3, 4, 0, 80, 0, 0}, Comment: "e"})
	b.AddChain(&Chain{Name: "c", Hook: &Hook{Type: "nat"}})
	b.seal(1)
	f.Add(b.buf)
	f.Fuzz(func(t *testing.T, data []byte) {
		l := &Listing{Chains: map[string]*Chain{}, Rules: map[string][]Rule{}, Sets: map[string]*Set{}}
		err := messages(data, func(m message) error {
			for _, add := range []func(message){l.addChain, l.addRule, l.addSet} {
				add(m)
			}
			m.isOf(Table{unix.NFPROTO_IPV4, "t"})
			var e Element
			e.decode(m.Body)
			generation(m)
			return nil
		})
		if err != nil && err != nlmsg.ErrTruncated {
			t.Errorf("got error %v", err)
		}
	})
}

// A set whose comment another version wrote stays: it would be made again without its elements.
func TestSetsAreEqualWhateverTheirComments(t *testing.T) {
	a := Set{Name: "s", Key: IPv4Addr, Comment: "who"}
	b := a
	if b.Comment = "whom"; !a.Equal(&b) {
		t.Error("sets differ by their comments")
	}
	if b.Size = 7; a.Equal(&b) {
		t.Error("sets of other sizes do not differ")
	}
}
