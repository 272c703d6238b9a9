//go:build netns

package ruleset

import (
	"context"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/netutil/netnstest"
	"svcproxy.dev/svcproxy/netutil/nft"
)

// committing returns what commits to the tables of the test's namespace, from any thread.
func committing(t *testing.T) func() {
	t.Helper()
	conn, err := nft.Dial()
	fatal.If(t, err)
	t.Cleanup(func() { conn.Close() })
	b := nft.NewBatch(nft.Table{Family: unix.NFPROTO_IPV4, Name: "other"})
	there := false
	return func() {
		b.Reset()
		if there {
			b.DeleteTable()
		} else {
			b.EnsureTable()
		}
		there = !there
		if err := conn.Commit(b); err != nil {
			t.Error(err)
		}
	}
}

// What changed while it was read is read again, not forever.
func TestReadRetriesAfterChanges(t *testing.T) {
	netnstest.Enter(t)
	commit := committing(t)
	for _, tt := range []struct {
		commits, reads int
		ok             bool
	}{{0, 1, true}, {1, 2, true}, {readings - 1, readings, true}, {100, readings, false}} {
		reads := 0
		ok := stable(func() bool {
			if reads++; reads <= tt.commits {
				commit()
			}
			return true
		})
		if ok != tt.ok || reads != tt.reads {
			t.Errorf("%d commits: %v after %d reads", tt.commits, ok, reads)
		}
	}
}

// A busy context commits when it is asked whether it has ended.
type busy struct {
	context.Context
	commit func()
}

func (b busy) Err() error {
	b.commit()
	return nil
}

// That rules change all the time is told.
func TestReadOfChanges(t *testing.T) {
	netnstest.Enter(t)
	rs := Read(busy{context.Background(), committing(t)}, Options{MaxRules: 1000})
	const want = "rules of nf_tables: they changed each time they were read"
	if !slices.Contains(rs.Unread, want) {
		t.Errorf("not read: %q", rs.Unread)
	}
	if rs = Read(context.Background(), Options{MaxRules: 1000}); len(rs.Unread) > 0 {
		t.Errorf("later: %q", rs.Unread)
	}
}
