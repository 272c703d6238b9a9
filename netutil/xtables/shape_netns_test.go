//go:build netns

package xtables

import (
	"os/exec"
	"testing"

	"svcproxy/netutil/netnstest"
)

// The shape of a table is the same as long as nobody writes to it, and another after that.
func TestShapeOf(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		netnstest.Enter(t)
		tool := &Tool{Variant: Legacy, IPv6: v6}
		if err := tool.find(tool.String()); err != nil {
			t.Fatal(err)
		}
		shape := func() Shape {
			t.Helper()
			s, err := tool.ShapeOf("nat")
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
		iptables := func(args ...string) {
			t.Helper()
			if out, err := exec.Command(tool.program(), append([]string{"-w", "-t", "nat"}, args...)...).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		}
		before := shape()
		iptables("-N", "SVCP-A")
		iptables("-A", "OUTPUT", "-j", "SVCP-A")
		filled := shape()
		if filled == before || filled.Entries != before.Entries+3 || shape() != filled {
			t.Errorf("%s: before %+v, with a chain and a rule %+v, then %+v", tool, before, filled, shape())
		}
		iptables("-F")
		if flushed := shape(); flushed == filled || flushed == before {
			t.Errorf("%s: flushed: got %+v", tool, flushed)
		}
	}
}
