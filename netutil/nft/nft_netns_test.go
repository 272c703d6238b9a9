//go:build netns

package nft

import (
	"context"
	"encoding/binary"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/netutil/netnstest"
)

// dial opens a Conn in a network namespace of its own.
func dial(t *testing.T) *Conn {
	t.Helper()
	netnstest.Enter(t)
	return another(t)
}

func another(t *testing.T) *Conn {
	t.Helper()
	c, err := Dial()
	fatal.If(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

var table = Table{unix.NFPROTO_IPV4, "test"}

func commit(t *testing.T, c *Conn, fill func(*Batch)) {
	t.Helper()
	b := NewBatch(table)
	fill(b)
	fatal.If(t, c.Commit(b))
}

func numbered(n uint32) Element {
	return Element{Key: binary.BigEndian.AppendUint32(nil, n), Data: binary.NativeEndian.AppendUint32(nil, 2*n)}
}

var doubles = &Set{Name: "doubles", Key: IPv4Addr, Data: Mark, Comment: "twice"}

// More elements than one message takes come back as they were sent.
func TestElementsBeyondOneMessage(t *testing.T) {
	c := dial(t)
	const count = 3*maxElements + 7
	commit(t, c, func(b *Batch) {
		b.AddTable("")
		b.AddSet(doubles)
		for n := range uint32(count) {
			e := numbered(n)
			e.Comment = map[bool]string{true: "even"}[n%2 == 0]
			b.AddElement("doubles", e)
		}
	})
	seen := map[uint32]bool{}
	list := func() error {
		return c.Scan(table, "doubles", func(e *Element) error {
			n := binary.BigEndian.Uint32(e.Key)
			want := numbered(n)
			want.Comment = map[bool]string{true: "even"}[n%2 == 0]
			if diff := cmp.Diff(want, Element{Key: e.Key, Data: e.Data, Comment: e.Comment}); diff != "" {
				t.Errorf("element %d (-want +got):\n%s", n, diff)
			}
			seen[n] = true
			return nil
		})
	}
	// The kernel may still be growing the set, see Elements.
	for start := time.Now(); len(seen) < count && !pace.Over(start, 5*time.Second); {
		fatal.If(t, list())
	}
	if len(seen) != count {
		t.Errorf("got %d elements, want %d", len(seen), count)
	}
	l, err := c.List(table)
	if err != nil || !l.Sets["doubles"].Equal(doubles) {
		t.Errorf("got set %+v, error %v", l.Sets["doubles"], err)
	}
}

// Get leaves out what is not there, wherever it would be.
func TestGetLeavesOutMissingObjects(t *testing.T) {
	c := dial(t)
	const count = 4 * maxElements
	there := func(n uint32) bool { return n%701 != 0 && n != count-1 && (n < 900 || n > 920) }
	commit(t, c, func(b *Batch) {
		b.AddTable("")
		b.AddSet(doubles)
		for n := range uint32(count) {
			if there(n) {
				b.AddElement("doubles", numbered(n))
			}
		}
	})
	found := map[int]bool{}
	err := c.Get(table, "doubles", count, func(i int) []byte { return numbered(uint32(i)).Key }, func(i int, e *Element) {
		if got := binary.NativeEndian.Uint32(e.Data); got != uint32(2*i) {
			t.Errorf("element %d: got %d", i, got)
		}
		found[i] = true
	})
	fatal.If(t, err)
	for i := range count {
		if found[i] != there(uint32(i)) {
			t.Errorf("element %d: found %v, is there %v", i, found[i], there(uint32(i)))
		}
	}
}

// A transaction that fails does nothing, says what failed, and leaves the socket fit for the next.
func TestCommitFails(t *testing.T) {
	c := dial(t)
	b := NewBatch(table)
	b.AddTable("")
	b.AddChain(&Chain{Name: "c"})
	b.DeleteSet("none")
	b.AddChain(&Chain{Name: "d"})
	err := c.Commit(b)
	if want := "deleting set none: no such file or directory"; err == nil || err.Error() != want || !errors.Is(err, unix.ENOENT) {
		t.Errorf("got error %v, want %s", err, want)
	}
	if l, err := c.List(table); l != nil || err != nil {
		t.Errorf("the table: got %v, error %v", l, err)
	}
	commit(t, c, func(b *Batch) { b.AddTable("") })
}

func TestTryChangesNothing(t *testing.T) {
	c := dial(t)
	b := NewBatch(table)
	b.AddTable("")
	b.AddSet(doubles)
	if err := c.Try(b); err != nil {
		t.Error(err)
	}
	b.Reset()
	b.AddTable("")
	b.AddSet(&Set{Name: "odd", Key: Type{IPv4Addr.Number, 400}})
	err := c.Try(b)
	if want := "adding set odd: invalid argument"; err == nil || err.Error() != want {
		t.Errorf("got error %v, want %s", err, want)
	}
	if l, err := c.List(table); l != nil || err != nil {
		t.Errorf("the table: got %v, error %v", l, err)
	}
}

// A monitor hears others, and of others what they do to its table.
func TestMonitorHearsOthersOnly(t *testing.T) {
	own := dial(t)
	other := another(t)
	m, err := NewMonitor(table, own)
	fatal.If(t, err)
	defer m.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	listening, events, ended := make(chan struct{}), make(chan Event, 10), make(chan error, 1)
	go func() { ended <- m.Watch(ctx, func() { close(listening) }, func(e Event) { events <- e }) }()
	<-listening
	commit(t, own, func(b *Batch) { b.AddTable("") })
	for _, t6 := range []Table{{unix.NFPROTO_IPV6, "test"}, {unix.NFPROTO_IPV4, "testing"}} {
		b := NewBatch(t6)
		b.AddTable("")
		fatal.If(t, other.Commit(b))
	}
	commit(t, other, func(b *Batch) { b.AddSet(doubles) })
	select {
	case e := <-events:
		if e.Process == "" || e.PID == 0 || e.Lost {
			t.Errorf("got event %+v", e)
		}
	case <-time.After(pace.Scale(5 * time.Second)):
		t.Error("no event after 5 s")
	}
	commit(t, own, func(b *Batch) { // so much that nobody listens meanwhile
		b.AddSet(&Set{Name: "many", Key: IPv4Addr, Data: Mark})
		for n := range uint32(announcedBytes / 32) {
			b.AddElement("many", numbered(n))
		}
	})
	commit(t, other, func(b *Batch) { b.AddChain(&Chain{Name: "c"}) })
	if e := <-events; e.PID == 0 || e.Lost {
		t.Errorf("after a large transaction: got event %+v", e)
	}
	m.missed.Store(true)
	m.wake()
	if e := <-events; !e.Lost {
		t.Errorf("after it missed something: got event %+v", e)
	}
	select {
	case e := <-events:
		t.Errorf("event of what is none of its business: %+v", e)
	case <-time.After(50 * time.Millisecond):
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("watch ended with %v", err)
	}
}

// An error reports whether flows were refused, or something else of the same transaction.
func TestErrorTellsRefusedFlows(t *testing.T) {
	c := dial(t)
	rule, err := NewRule(table.Family, "", FlowOffload("flows"))
	fatal.If(t, err)
	for name, tt := range map[string]struct {
		fill func(*Batch)
		want bool
	}{
		"flow table": {func(b *Batch) { b.AddFlowtable(&Flowtable{Name: "flows", Devices: []string{"nosuch0"}}) }, true},
		"its rule":   {func(b *Batch) { b.AddRule("c", rule) }, true},
		"other rule": {func(b *Batch) { b.AddRule("d", Rule{}) }, false},
		"its end":    {func(b *Batch) { b.DeleteFlowtable("flows") }, false},
		"earlier":    {func(b *Batch) { b.DeleteSet("none"); b.AddRule("c", rule) }, false},
	} {
		b := NewBatch(table)
		b.AddTable("")
		b.AddChain(&Chain{Name: "c", Hook: &Hook{Type: "filter", Number: unix.NF_INET_FORWARD, Policy: Accept}})
		tt.fill(b)
		var refused *CommitError
		if err := c.Commit(b); !errors.As(err, &refused) || refused.AddsFlows() != tt.want {
			t.Errorf("%s: got error %v, want %v", name, err, tt.want)
		}
	}
}
