//go:build netns

package etcd

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/netutil/netnstest"
	"svcproxy.dev/svcproxy/source/remote"
)

const scaleHosts = 500

// An audience is many hosts that follow one etcd. Each has its own Fetcher.
type audience struct {
	mu    sync.Mutex
	has   map[int]string // the content of the text, by host
	delay []time.Duration
	text  string    // the content that all hosts must get
	since time.Time // when it was committed
}

// give returns the function that a host calls with a new Set.
func (a *audience) give(host int) func(remote.Set) {
	return func(s remote.Set) {
		now := time.Now()
		text := ""
		for _, t := range s.Texts {
			if strings.HasSuffix(t.Name, "/0.toml") {
				text, _, _ = strings.Cut(string(t.Data), " ")
			}
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.has[host] != text && text == a.text {
			a.delay = append(a.delay, now.Sub(a.since))
		}
		a.has[host] = text
	}
}

// await calls do, which commits a text, waits until all hosts have the text, and returns how long each host took.
func (a *audience) await(t *testing.T, text string, do func()) []time.Duration {
	t.Helper()
	a.mu.Lock()
	a.text, a.since, a.delay = text, time.Now(), nil
	a.mu.Unlock()
	do()
	pace.UntilOr(t, func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return len(a.delay) == scaleHosts
	}, func() string {
		a.mu.Lock()
		defer a.mu.Unlock()
		return fmt.Sprintf("%d of %d hosts have %s", len(a.delay), scaleHosts, text)
	})
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.delay)
}

// A load is the resource use of etcd since its start.
type load struct {
	at                time.Time
	cpu               time.Duration
	bytes             uint64
	started, messages int
}

// load reads the processor time and metrics of etcd, and the counters of its link.
func (s *server) load() (l load) {
	s.t.Helper()
	u, err := netnstest.UsageOf(s.etcd.Pid())
	fatal.If(s.t, err)
	link, err := s.ns.Links.LinkByName("eth0")
	fatal.If(s.t, err)
	l = load{at: time.Now(), cpu: u.Processor, bytes: link.Attrs().Statistics.TxBytes + link.Attrs().Statistics.RxBytes}
	transport := &http.Transport{DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) { return s.dialIn(ctx, addr) }}
	defer transport.CloseIdleConnections()
	ask, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, s.url()+"/metrics", nil)
	fatal.If(s.t, err)
	var answer *http.Response
	fatal.If(s.t, pace.Poll(answerWait, func() error { // it may be starting
		answer, err = (&http.Client{Transport: transport}).Do(ask)
		return err
	}))
	defer answer.Body.Close()
	for lines := bufio.NewScanner(answer.Body); lines.Scan(); {
		var n float64
		name, value, _ := strings.Cut(lines.Text(), " ")
		fmt.Sscan(value, &n)
		switch {
		case strings.HasPrefix(name, "grpc_server_started_total{"):
			l.started += int(n)
		case strings.HasPrefix(name, "grpc_server_msg_"):
			l.messages += int(n)
		}
	}
	return l
}

// since returns the difference to an earlier load, as text.
func (l load) since(b load) string {
	secs := l.at.Sub(b.at).Seconds()
	return fmt.Sprintf("in %.0f s: %.1f %% of a processor, %.1f kB/s, %.1f calls/s, %.1f messages/s", secs, 100*(l.cpu-b.cpu).Seconds()/secs,
		float64(l.bytes-b.bytes)/secs/1000, float64(l.started-b.started)/secs, float64(l.messages-b.messages)/secs)
}

// Many hosts all get a change soon after its commit. The test logs the delay and the load of etcd.
func TestManyHosts(t *testing.T) {
	s := newServer(t, "--metrics", "extensive")
	var ops []*pb.RequestOp
	text := func(round int) string { return fmt.Sprintf("%d %02000d", round, 0) }
	for i := range 100 {
		ops = append(ops, put(fmt.Sprintf("%d.toml", i), text(0)))
	}
	s.commit(ops...)
	a := &audience{has: map[int]string{}}
	ctx, cancel := context.WithCancel(t.Context())
	var hosts sync.WaitGroup
	defer hosts.Wait()
	defer cancel()
	tell := func(what string, delays []time.Duration) {
		slices.Sort(delays)
		t.Logf("%s: from commit to given %v in the middle, p99 %v, last %v, %d hosts", what, round(delays[len(delays)/2]), round(delays[len(delays)*99/100]), round(delays[len(delays)-1]), scaleHosts)
	}
	begin := s.load()
	tell("first list", a.await(t, "0", func() {
		for i := range scaleHosts {
			f := New(s.options())
			hosts.Go(func() { _ = f.Run(ctx, a.give(i), func(error) {}) })
		}
	}))
	t.Logf("first list, %s", s.load().since(begin))

	begin = s.load()
	time.Sleep(10 * time.Second)
	t.Logf("idle %s", s.load().since(begin))

	o := s.options()
	o.dial = s.dialIn
	m, err := New(o).connect(ctx, s.url())
	fatal.If(t, err)
	defer m.Close()
	commit := func(round int) func() {
		return func() {
			_, err := pb.NewKVClient(m).Txn(ctx, &pb.TxnRequest{Success: []*pb.RequestOp{put("0.toml", text(round))}})
			fatal.If(t, err)
		}
	}
	commit(0)() // connects
	begin = s.load()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var all []time.Duration
	for i := range 10 {
		all = append(all, a.await(t, fmt.Sprint(i+1), commit(i+1))...)
		<-tick.C
	}
	t.Logf("one commit a second %s", s.load().since(begin))
	tell("one commit a second", all)

	s.kill()
	s.start()
	begin = s.load()
	tell("after a restart", a.await(t, "21", func() { s.commit(put("0.toml", text(21))) }))
	t.Logf("after a restart %s", s.load().since(begin))
}

func round(d time.Duration) time.Duration { return d.Round(100 * time.Microsecond) }
