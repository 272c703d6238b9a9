//go:build netns

package filter

import (
	"context"
	"os/exec"
	"testing"
	"time"

	"svcproxy/netutil/netnstest"
	"svcproxy/netutil/nft"
	"svcproxy/netutil/xtables"
	"svcproxy/proxier"
	"svcproxy/proxier/filter/filtertest"
)

// A delta that changes only members of sets starts no program: here there is none.
func TestMembersNeedNoProgram(t *testing.T) {
	netnstest.Enter(t)
	ctx := context.Background()
	k, err := Open(ctx, proxier.IPv4)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { k.Close() })
	w := filtertest.NewWorld(proxier.IPv4)
	r := NewRules(proxier.IPv4)
	if err := r.Reset(w.State); err != nil {
		t.Fatal(err)
	}
	held, err := k.Look(ctx, r)
	if err != nil {
		t.Fatal(err)
	}
	if err := k.Mend(ctx, held, r, w.State); err != nil {
		t.Fatal(err)
	}

	k.tool = &xtables.Tool{}
	empty := filtertest.Web(proxier.IPv4, 1, 0)
	if err := k.Apply(ctx, r.Update(w.Put(empty.Key, empty)), r); err != nil {
		t.Errorf("a service that refuses: %v", err)
	}
	l, err := k.sets.List(ctx, "SVCP-REJECT-4")
	if err != nil || len(l.Entries) != 1 || l.Entries[0].String() != "10.96.0.2,tcp:80" {
		t.Errorf("SVCP-REJECT-4: got %v, %v", l, err)
	}
	if err := k.Apply(ctx, r.Update(w.Put(empty.Key, nil)), r); err != nil {
		t.Errorf("the same removed: %v", err)
	}
	web := filtertest.Web(proxier.IPv4, 2, 1)
	if err := k.Apply(ctx, r.Update(w.Put(web.Key, web)), r); err == nil {
		t.Error("rules were written without a program")
	}
	if k.Knows() {
		t.Error("an error does not make the next sync a full one")
	}
}

// As long as nf_tables tells of no change, a look reads no table: here it could not.
func TestLooksAreCheap(t *testing.T) {
	netnstest.Enter(t)
	ctx, cancel := context.WithCancel(context.Background())
	k, err := Open(ctx, proxier.IPv4)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { k.Close() })
	if k.tool.Variant != xtables.NFT {
		t.Skip("plain iptables is the legacy variant here, which tells of nothing")
	}
	w := filtertest.NewWorld(proxier.IPv4)
	r := NewRules(proxier.IPv4)
	if err := r.Reset(w.State); err != nil {
		t.Fatal(err)
	}
	held, err := k.Look(ctx, r)
	if err != nil {
		t.Fatal(err)
	}
	if err := k.Mend(ctx, held, r, w.State); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error)
	go netnstest.Here(t, func() { ended <- k.Watch(ctx, func(nft.Event) {}) })()
	t.Cleanup(func() { cancel(); <-ended })
	for deadline := time.Now().Add(5 * time.Second); !k.events.watching.Load(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("nothing is watched after 5 s")
		}
	}
	if damaged, err := k.Examine(ctx); err != nil || damaged { // what was before is unknown
		t.Fatalf("first look: %v, %v", damaged, err)
	}
	web := filtertest.Web(proxier.IPv4, 1, 1)
	if err := k.Apply(ctx, r.Update(w.Put(web.Key, web)), r); err != nil {
		t.Fatal(err)
	}
	k.tool = &xtables.Tool{Variant: xtables.NFT}
	if damaged, err := k.Examine(ctx); err != nil || damaged {
		t.Errorf("look after a change of our own: %v, %v", damaged, err)
	}
	if out, err := exec.Command("iptables-nft", "-t", "nat", "-F", MarkMasq).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for deadline := time.Now().Add(5 * time.Second); !k.events.unsure.Load(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("a change by another process was not heard of after 5 s")
		}
	}
}
