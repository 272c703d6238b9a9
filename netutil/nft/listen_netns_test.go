//go:build netns

package nft

import (
	"context"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/internal/pace"
)

// heard starts a monitor and returns what it tells of.
func heard(t *testing.T, m *Monitor, err error) <-chan Event {
	t.Helper()
	fatal.If(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	listening, events, ended := make(chan struct{}), make(chan Event, 100), make(chan error, 1)
	go func() { ended <- m.Watch(ctx, func() { close(listening) }, func(e Event) { events <- e }) }()
	t.Cleanup(func() { cancel(); <-ended; m.Close() })
	<-listening
	return events
}

// What one of our sockets commits while another one is unheard is no event that was missed.
func TestOwnCommitsAreNotMissed(t *testing.T) {
	own, other := dial(t), another(t)
	m, err := NewMonitor(table, own)
	events := heard(t, m, err)
	commit(t, own, func(b *Batch) { b.AddTable("") })
	second := Table{unix.NFPROTO_IPV6, "test"} // the other family's
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			b := NewBatch(second) // which is a commit, though nothing stays
			b.AddTable("")
			b.AddChain(&Chain{Name: "c"})
			b.DeleteChain("c")
			if err := other.Commit(b); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for range 5 {
		err := own.Unheard(1, func() error {
			time.Sleep(20 * time.Millisecond)
			b := NewBatch(table)
			b.AddChain(&Chain{Name: "c"})
			b.DeleteChain("c")
			return own.commit(b)
		})
		if err != nil {
			t.Error(err)
		}
	}
	close(stop)
	wg.Wait()
	select {
	case e := <-events:
		t.Errorf("told of %+v", e)
	case <-time.After(50 * time.Millisecond):
	}
}

// Chains that are there for a moment, and rules of them, are no event.
func TestScratchChainsAreNoEvent(t *testing.T) {
	c := dial(t)
	m, err := NewNameMonitor(Names{
		Tables: []Table{table}, Ours: "OUR-", Scratch: "OUR-PROBE", Others: []string{"FORWARD"}, Touched: func(Event) {},
		Own: func(uint32, uint32) bool { return false },
	})
	events := heard(t, m, err)
	rule, err := NewRule(table.Family, "OUR-PROBE")
	fatal.If(t, err)
	commit(t, c, func(b *Batch) { b.AddTable("") })
	commit(t, c, func(b *Batch) { b.AddChain(&Chain{Name: "OUR-PROBE-1"}); b.AddRule("OUR-PROBE-1", rule) })
	commit(t, c, func(b *Batch) { b.FlushChain("OUR-PROBE-1"); b.DeleteChain("OUR-PROBE-1") })
	commit(t, c, func(b *Batch) { b.AddChain(&Chain{Name: "OUR-CHAIN"}) })
	commit(t, c, func(b *Batch) { b.AddRule("OUR-CHAIN", rule) })
	for _, what := range []string{"a chain", "a rule of it"} {
		select {
		case <-events:
		case <-time.After(pace.Scale(5 * time.Second)):
			t.Errorf("not told of %s", what)
		}
	}
	select {
	case e := <-events:
		t.Errorf("also told of %+v", e)
	case <-time.After(50 * time.Millisecond):
	}
}
