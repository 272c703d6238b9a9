package l2

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A fakeNetwork has a host as the test makes it, and writes down what is announced.
type fakeNetwork struct {
	mu     sync.Mutex
	host   *host
	err    error // of read
	failed error // of announce
	reads  int
	start  time.Time
	sent   []announcement
}

type announcement struct {
	at   time.Duration // since the start
	addr netip.Addr
	link string
}

func (a announcement) String() string { return fmt.Sprint(a.at, " ", a.addr, " ", a.link) }

func (f *fakeNetwork) read() (*host, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reads++
	return f.host, f.err
}

func (f *fakeNetwork) announce(on link, a netip.Addr) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failed != nil {
		return f.failed
	}
	f.sent = append(f.sent, announcement{time.Since(f.start), a, on.name})
	return nil
}

func (f *fakeNetwork) close() {}

// change changes the host, whose old one stays as it is.
func (f *fakeNetwork) change(change func(*host)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.host = sampleHost()
	change(f.host)
}

// take returns what was announced since it was last called, one a line, with times since the start.
func (f *fakeNetwork) take() (lines []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, a := range f.sent {
		lines = append(lines, a.String())
	}
	f.sent, f.start = nil, time.Now()
	return lines
}

// A fixture is an Announcer that runs in a bubble with a fake network.
type fixture struct {
	*Announcer
	f       *fakeNetwork
	log     *strings.Builder
	changes chan struct{}
}

// bubble runs a test in a bubble of time.
func bubble(t *testing.T, test func(*testing.T, fixture)) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		x := fixture{New(slog.New(slog.NewTextHandler(&log, nil))), &fakeNetwork{host: sampleHost(), start: time.Now()}, &log, make(chan struct{}, 1)}
		x.net = x.f
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); x.loop(ctx, x.changes) }()
		test(t, x)
		cancel()
		<-done
	})
}

func (x fixture) set(list ...string) {
	var addrs []netip.Addr
	for _, s := range list {
		addrs = append(addrs, netip.MustParseAddr(s))
	}
	x.Set(addrs)
}

// after lets time pass and compares what was announced in it.
func (x fixture) after(t *testing.T, d time.Duration, want ...string) {
	t.Helper()
	time.Sleep(d)
	synctest.Wait()
	if got := x.f.take(); !slices.Equal(got, want) {
		t.Errorf("announced\n got: %s\nwant: %s", strings.Join(got, "\n      "), strings.Join(want, "\n      "))
	}
}

func (x fixture) results() string {
	var list []string
	for _, r := range x.Results() {
		list = append(list, fmt.Sprint(r.Addr, " ", r.Link, " ", r.Sent, " ", r.Err))
	}
	return strings.Join(list, "\n")
}

func wantText(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s\n got: %s\nwant: %s", what, got, want)
	}
}

func TestAnnouncesThreeTimes(t *testing.T) {
	bubble(t, func(t *testing.T, x fixture) {
		x.set("10.1.0.1")
		wantText(t, "before the host was read", x.results(), "10.1.0.1  0 the links of this host have not been read yet")
		x.after(t, time.Hour, "50ms 10.1.0.1 eth0", "1.15s 10.1.0.1 eth0", "3.35s 10.1.0.1 eth0")
		wantText(t, "results", x.results(), "10.1.0.1 eth0 3 <nil>")
		if last := time.Since(x.Results()[0].Last); last != time.Hour-3350*time.Millisecond {
			t.Errorf("last announced %v ago", last)
		}
		x.set("10.1.0.1", "2001:db8::1", "::ffff:10.1.0.1") // what stays is not announced again
		x.after(t, time.Minute, "50ms 2001:db8::1 eth0", "1.15s 2001:db8::1 eth0", "3.35s 2001:db8::1 eth0")
		wantText(t, "results", x.results(), "10.1.0.1 eth0 3 <nil>\n2001:db8::1 eth0 3 <nil>")
		x.set("2001:db8::1%eth0")
		x.after(t, time.Minute)
		wantText(t, "results", x.results(), "2001:db8::1 eth0 3 <nil>")
		x.set()
		x.after(t, time.Minute)
		wantText(t, "results", x.results(), "")
	})
}

// What goes is not announced any longer, in the middle of a series too.
func TestStopsWhenAnAddressGoes(t *testing.T) {
	bubble(t, func(t *testing.T, x fixture) {
		x.set("10.1.0.1", "2001:db8::1")
		x.after(t, time.Second, "50ms 10.1.0.1 eth0", "55ms 2001:db8::1 eth0")
		x.set("2001:db8::1")
		x.after(t, time.Minute, "155ms 2001:db8::1 eth0", "2.355s 2001:db8::1 eth0")
	})
}

// What went and comes back is announced as what is new, in the middle of a series too.
func TestAnnouncesWhatComesBack(t *testing.T) {
	bubble(t, func(t *testing.T, x fixture) {
		x.set("10.1.0.1")
		x.after(t, 3*time.Second, "50ms 10.1.0.1 eth0", "1.15s 10.1.0.1 eth0")
		x.set()
		x.after(t, 100*time.Millisecond)
		x.set("10.1.0.1")
		x.after(t, time.Minute, "50ms 10.1.0.1 eth0", "1.15s 10.1.0.1 eth0", "3.35s 10.1.0.1 eth0")
		wantText(t, "results", x.results(), "10.1.0.1 eth0 3 <nil>")
	})
}

// What changes on the link of an address, and how often it is announced because of that.
func TestAnnouncesWhenALinkChanges(t *testing.T) {
	series := func(link string) []string {
		return []string{"50ms 10.1.0.1 " + link, "1.15s 10.1.0.1 " + link, "3.35s 10.1.0.1 " + link}
	}
	own := netip.MustParseAddr("10.1.0.1")
	for _, tt := range []struct {
		name   string
		change func(*host)
		want   []string
	}{
		{"nothing", func(*host) {}, nil},
		{"another link", func(h *host) { h.devices[3].ups++ }, nil},
		{"down and up unseen", func(h *host) { h.devices[2].ups++ }, series("eth0")},
		{"another link-layer address", func(h *host) { h.devices[2].mac = "\x02abcde" }, series("eth0")},
		{"made again", func(h *host) { h.devices[2].index = 22 }, series("eth0")},
		{"moved", func(h *host) { h.held[own] = []holding{{index: 3}} }, series("eth1")},
		{"on a second link", func(h *host) { h.held[own] = append(h.held[own], holding{index: 3}) }, series("eth1")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, x fixture) {
				x.set("10.1.0.1")
				x.after(t, time.Minute, series("eth0")...)
				x.f.change(tt.change)
				x.changes <- struct{}{}
				x.after(t, time.Minute, tt.want...)
			})
		})
	}
}

func TestAnnouncesWhenALinkComesUp(t *testing.T) {
	bubble(t, func(t *testing.T, x fixture) {
		x.set("10.1.0.1")
		x.after(t, time.Second, "50ms 10.1.0.1 eth0")
		x.f.change(func(h *host) { h.devices[2].carrier = false })
		x.changes <- struct{}{}
		x.after(t, time.Minute)
		wantText(t, "results", x.results(), "10.1.0.1 eth0 1 eth0 has no carrier")
		x.f.change(func(*host) {})
		x.changes <- struct{}{}
		x.after(t, time.Minute, "50ms 10.1.0.1 eth0", "1.15s 10.1.0.1 eth0", "3.35s 10.1.0.1 eth0")
		wantText(t, "results", x.results(), "10.1.0.1 eth0 4 <nil>")
		if n := strings.Count(x.log.String(), "level=WARN"); n != 1 {
			t.Errorf("%d warnings:\n%s", n, x.log)
		}
	})
}

// Nobody tells of what lets the kernel answer: it is looked at again.
func TestHostIsInspectedAgain(t *testing.T) {
	bubble(t, func(t *testing.T, x fixture) {
		x.set("10.1.0.98")
		x.after(t, time.Minute)
		x.f.change(func(h *host) { h.isLocal = func(netip.Addr) (bool, error) { return true, nil } })
		x.after(t, relook, "50ms 10.1.0.98 eth0", "55ms 10.1.0.98 eth1", "1.15s 10.1.0.98 eth0", "1.155s 10.1.0.98 eth1",
			"3.35s 10.1.0.98 eth0", "3.355s 10.1.0.98 eth1")
		reads := x.f.reads
		x.after(t, time.Minute)
		if x.f.reads != reads {
			t.Error("the host is read although all is announced")
		}
		if n := strings.Count(x.log.String(), "level=WARN"); n != 1 {
			t.Errorf("%d warnings:\n%s", n, x.log)
		}
	})
}

// However many there are, 200 a second are announced, the first of each before the second of any.
func TestAnnouncementsAreSpaced(t *testing.T) {
	bubble(t, func(t *testing.T, x fixture) {
		const many = 600
		var addrs []netip.Addr
		x.f.change(func(h *host) {
			for i := range many {
				a := netip.AddrFrom4([4]byte{10, 1, byte(1 + i/250), byte(i % 250)})
				addrs = append(addrs, a)
				h.held[a] = []holding{{index: 2}}
			}
		})
		x.Set(addrs)
		time.Sleep(time.Minute)
		synctest.Wait()
		seen := map[netip.Addr]int{}
		for i, a := range x.f.sent {
			if i > 0 && a.at-x.f.sent[i-1].at < 5*time.Millisecond {
				t.Fatalf("%v right after %v", a, x.f.sent[i-1])
			}
			if seen[a.addr]++; i < many && seen[a.addr] > 1 {
				t.Fatalf("%v is announced again before all were", a)
			}
		}
		if len(x.f.sent) != 3*many || len(seen) != many {
			t.Errorf("%d announcements of %d addresses", len(x.f.sent), len(seen))
		}
		if last := x.f.sent[3*many-1].at; last > 10*time.Second {
			t.Errorf("the last was announced after %v", last)
		}
	})
}

func TestFailedAnnouncementIsRetried(t *testing.T) {
	bubble(t, func(t *testing.T, x fixture) {
		x.f.failed = errors.New("no buffer")
		x.set("10.1.0.1", "10.1.0.2")
		x.after(t, time.Minute)
		wantText(t, "results", x.results(), "10.1.0.1 eth0 0 no buffer\n10.1.0.2 eth1 0 no buffer")
		if n := strings.Count(x.log.String(), "no buffer"); n != 1 {
			t.Errorf("%d warnings:\n%s", n, x.log)
		}
		x.f.mu.Lock()
		x.f.failed = nil
		x.f.mu.Unlock()
		x.after(t, retryAfter, "50ms 10.1.0.1 eth0", "55ms 10.1.0.2 eth1", "1.15s 10.1.0.1 eth0", "1.155s 10.1.0.2 eth1",
			"3.35s 10.1.0.1 eth0", "3.355s 10.1.0.2 eth1")
		wantText(t, "results", x.results(), "10.1.0.1 eth0 3 <nil>\n10.1.0.2 eth1 3 <nil>")
	})
}

// A host that cannot be read is read again; what is announced stays, and what was asked for is not lost.
func TestHostThatCannotBeRead(t *testing.T) {
	bubble(t, func(t *testing.T, x fixture) {
		x.set("10.1.0.1")
		x.after(t, time.Minute, "50ms 10.1.0.1 eth0", "1.15s 10.1.0.1 eth0", "3.35s 10.1.0.1 eth0")
		x.f.mu.Lock()
		x.f.err = errors.New("no memory")
		x.f.mu.Unlock()
		x.set("10.1.0.1", "10.1.0.2")
		x.after(t, time.Minute)
		wantText(t, "results", x.results(), "10.1.0.1 eth0 3 <nil>\n10.1.0.2  0 the links of this host have not been read yet")
		if n := strings.Count(x.log.String(), "no memory"); n != 1 {
			t.Errorf("%d warnings:\n%s", n, x.log)
		}
		x.f.mu.Lock()
		x.f.err = nil
		x.f.mu.Unlock()
		x.after(t, reread, "50ms 10.1.0.2 eth1")
	})
}

// Without addresses the host is left alone.
func TestReadsNothingWithoutAddresses(t *testing.T) {
	bubble(t, func(t *testing.T, x fixture) {
		x.changes <- struct{}{}
		x.set()
		x.after(t, 24*time.Hour)
		if x.f.reads != 0 {
			t.Errorf("read %d times", x.f.reads)
		}
	})
}
