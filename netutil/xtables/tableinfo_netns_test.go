//go:build netns

package xtables

import (
	"os/exec"
	"testing"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/netutil/netnstest"
)

// The shape of a table is the same as long as nobody writes to it, and another after that.
func TestShapeOf(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		netnstest.Enter(t)
		tool := &Tool{Variant: Legacy, IPv6: v6}
		fatal.If(t, tool.find(tool.String()))
		shape := func() TableInfo {
			t.Helper()
			s, err := tool.ReadInfo("nat")
			fatal.If(t, err)
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
		content := func() Sum {
			t.Helper()
			sum, err := tool.ReadSum("nat")
			fatal.If(t, err)
			return sum
		}
		held := content()
		iptables("-A", "SVCP-A", "-p", "tcp", "--dport", "80", "-j", "RETURN")
		added := content()
		iptables("-R", "SVCP-A", "1", "-p", "tcp", "--dport", "81", "-j", "RETURN")
		if replaced := content(); added == held || replaced == added || content() != replaced {
			t.Errorf("%s: content %d, with a rule %d, another one %d, then %d", tool, held, added, replaced, content())
		}
		iptables("-D", "SVCP-A", "1")
		if content() != held {
			t.Errorf("%s: the same rules have another content", tool)
		}
		iptables("-F")
		if flushed := shape(); flushed == filled || flushed == before {
			t.Errorf("%s: flushed: got %+v", tool, flushed)
		}
	}
}
