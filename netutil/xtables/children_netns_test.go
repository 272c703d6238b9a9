//go:build netns

package xtables

import (
	"context"
	"os/exec"
	"testing"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/netutil/netnstest"
	"svcproxy.dev/svcproxy/netutil/nft"
)

// What a program of ours commits is ours, and what others do before and after is
// not, whatever their process id.
func TestCommitsOfRestore(t *testing.T) {
	netnstest.Enter(t)
	now := func() uint32 {
		t.Helper()
		g, err := nft.CurrentGeneration()
		fatal.If(t, err)
		return g
	}
	others := func() uint32 {
		t.Helper()
		if out, err := exec.Command("iptables-nft", "-A", "INPUT", "-j", "ACCEPT").CombinedOutput(); err != nil {
			t.Fatalf("iptables-nft: %v\n%s", err, out)
		}
		return now()
	}
	tool := &Tool{Variant: NFT}
	fatal.If(t, tool.find(tool.String()))
	var s Script
	s.Set("nat", "SVCP-A", []byte("-A SVCP-A -j RETURN\n"))
	s.Set("filter", "SVCP-B", []byte("-A SVCP-B -j RETURN\n"))
	before := others()
	fatal.If(t, tool.Restore(context.Background(), &s))
	ours, after := now(), others()
	children.Lock()
	pid := children.last[(children.next-1)%len(children.last)].pid
	children.Unlock()
	if ours == before {
		t.Fatal("nothing was committed")
	}
	for g := before; g != after+1; g++ {
		if got, want := Committed(pid, g), g > before && g <= ours; got != want {
			t.Errorf("generation %d, between %d and %d: ours %v, want %v", g, before, after, got, want)
		}
	}
}
