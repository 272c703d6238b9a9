//go:build netns

package nft

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/netutil/netnstest"
)

// numberedChains returns the names of 1,000 chains.
func numberedChains(group string) (names []string) {
	for i := range 1000 {
		names = append(names, fmt.Sprint(group, i))
	}
	return names
}

// A listing that the kernel gives as whole lacks nothing, also where it begins while
// another process's transaction unlinks chains that come before others.
func TestListingIsWhole(t *testing.T) {
	c := dial(t)
	groups := [][]string{numberedChains("a"), numberedChains("b")}
	add := func(b *Batch, names []string) {
		for _, name := range names {
			b.AddChain(&Chain{Name: name})
		}
	}
	commit(t, c, func(b *Batch) {
		b.AddTable("")
		add(b, groups[0])
		add(b, groups[1])
	})
	// A listener makes commits take longer.
	fatal.If(t, unix.SetsockoptInt(another(t).fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, unix.NFNLGRP_NFTABLES))
	var over atomic.Bool
	var wg sync.WaitGroup
	wg.Go(netnstest.Here(t, func() {
		other := another(t)
		for ; !over.Load(); time.Sleep(2 * time.Millisecond) {
			b := NewBatch(table)
			for _, name := range groups[0] {
				b.DeleteChain(name)
			}
			add(b, groups[0]) // behind the others
			slices.Reverse(groups)
			if err := other.Commit(b); err != nil {
				t.Error(err)
				return
			}
		}
	}))
	whole := 0
	for start := time.Now(); time.Since(start) < 3*time.Second || whole == 0; {
		if time.Since(start) > time.Minute {
			t.Error("no listing was whole")
			break
		}
		var names []string
		err := c.dump(table, unix.NFT_MSG_GETCHAIN, func(m message) { names = append(names, m.string(unix.NFTA_CHAIN_NAME)) })
		if errors.Is(err, ErrChanged) {
			continue
		}
		fatal.If(t, err)
		whole++
		if n := len(names); n != 2000 {
			t.Errorf("listing %d has %d chains, want 2000", whole, n)
		}
	}
	over.Store(true)
	wg.Wait()
	t.Log(whole, "listings")
}

// A listing of a later transaction than the one that was waited for is refused.
func TestListingIsOfGeneration(t *testing.T) {
	c := dial(t)
	commit(t, c, func(b *Batch) {
		b.AddTable("")
		b.AddChain(&Chain{Name: "a"})
	})
	g, err := c.FinishedGeneration()
	fatal.If(t, err)
	list := func() (n int, err error) {
		err = c.dumpOf(g, table, unix.NFT_MSG_GETCHAIN, func(message) { n++ })
		return n, err
	}
	if n, err := list(); n != 1 || err != nil {
		t.Errorf("%d chains, %v, want 1", n, err)
	}
	commit(t, c, func(b *Batch) { b.AddChain(&Chain{Name: "b"}) })
	if n, err := list(); n != 0 || !errors.Is(err, ErrChanged) {
		t.Errorf("%d chains of a later transaction, %v, want %v", n, err, ErrChanged)
	}
}
