package proxier

import (
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// fight calls Changed every interval for a while, and returns how many repairs
// there were and how many lines for the log.
func fight(c *Contention, who string, interval, duration time.Duration) (news int) {
	for end := time.Now().Add(duration); time.Now().Before(end); time.Sleep(interval) {
		if _, n := c.Changed(who); n {
			news++
		}
	}
	return news
}

// A change now and then is repaired at once, forever.
func TestContentionRepairsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var repairs atomic.Int32
		c := NewContention(func() { repairs.Add(1) })
		defer c.Stop()
		if news := fight(c, "nft", contentionWindow/contentionRepairs, time.Hour); news != 3600 || repairs.Load() != 3600 {
			t.Errorf("%d repairs, %d lines, want 3600 of each", repairs.Load(), news)
		}
		if c.Changed("nft"); repairs.Load() != 3601 {
			t.Error("the last change is not repaired at once")
		}
	})
}

// Who changes things all the time is repaired a few times at once, then ever
// later, up to twice a minute, and never given up. One line tells of it.
func TestContentionBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var repairs []time.Duration
		start := time.Now()
		c := NewContention(func() {
			mu.Lock()
			defer mu.Unlock()
			repairs = append(repairs, time.Since(start))
		})
		defer c.Stop()
		news := fight(c, "nft (pid 7)", 50*time.Millisecond, 10*time.Minute)
		if news != contentionRepairs+1 {
			t.Errorf("%d lines for the log, want %d", news, contentionRepairs+1)
		}
		mu.Lock()
		defer mu.Unlock()
		if len(repairs) < 20 || len(repairs) > 40 {
			t.Errorf("%d repairs in 10 minutes: %v", len(repairs), repairs)
		}
		last := len(repairs) - 1
		if gap := repairs[last] - repairs[last-1]; gap < contentionMaxWait || gap > contentionMaxWait+time.Second {
			t.Errorf("the last two repairs are %v apart, want some %v", gap, contentionMaxWait)
		}
		const want = "nft (pid 7) changes what svcproxy has in the kernel: 12000 times since "
		if p := c.Problem(); !strings.HasPrefix(p, want) || !strings.Contains(p, "repairs wait up to 30s") {
			t.Errorf("problem %q, want %q", p, want)
		}
	})
}

// What is pending is repaired although nothing changes any more, and after some quiet repairs are at once again.
func TestContentionEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var repairs atomic.Int32
		c := NewContention(func() { repairs.Add(1) })
		defer c.Stop()
		fight(c, "nft", 50*time.Millisecond, 20*time.Second)
		before := repairs.Load()
		if wait, _ := c.Changed("nft"); wait == 0 {
			t.Error("repairs do not wait")
		}
		time.Sleep(contentionMaxWait + time.Second)
		if repairs.Load() <= before {
			t.Error("what was pending is not repaired")
		}
		time.Sleep(contentionEnds)
		if p := c.Problem(); p != "" {
			t.Errorf("after some quiet: %q", p)
		}
		before = repairs.Load()
		if wait, news := c.Changed("nft"); wait != 0 || !news || repairs.Load() != before+1 {
			t.Errorf("after some quiet a repair waits %v, worth a line: %v", wait, news)
		}
	})
}

// A few changes are shown before anything waits; the last who made one is named.
func TestContentionIsShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewContention(func() {})
		defer c.Stop()
		for i := range contentionShown {
			if p := c.Problem(); p != "" {
				t.Errorf("after %d changes: %q", i, p)
			}
			c.Changed("nft")
			time.Sleep(contentionMaxWait)
		}
		c.Changed("firewalld (pid 8)")
		if p := c.Problem(); !strings.HasPrefix(p, "firewalld (pid 8) changes ") || strings.Contains(p, "wait") {
			t.Errorf("problem %q", p)
		}
	})
}

// Nothing is repaired after the end.
func TestContentionStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var repairs atomic.Int32
		c := NewContention(func() { repairs.Add(1) })
		fight(c, "nft", 50*time.Millisecond, 20*time.Second)
		c.Changed("nft")
		c.Stop()
		before := repairs.Load()
		c.Changed("nft")
		time.Sleep(time.Hour)
		if repairs.Load() != before {
			t.Errorf("%d repairs after the end", repairs.Load()-before)
		}
	})
}
