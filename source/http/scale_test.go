package http

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/file"
)

const (
	fleetHosts    = 500
	fleetTexts    = 20
	fleetInterval = time.Second
	fleetIdle     = 3 * fleetInterval
	fleetChanges  = 3
)

// A fleet is many hosts that follow one server. It is the sink of all of them.
type fleet struct {
	mu    sync.Mutex
	given map[string]int // number of hosts that have a service, by its name
	took  []time.Duration
	begun time.Time
}

// Many hosts that follow one server send it one request per interval, for the index only, and get a change within about one
// interval. The test logs the figures.
func TestFleet(t *testing.T) {
	w, files := newWeb(t), texts{}
	for i := range fleetTexts {
		files[fmt.Sprintf("%d.toml", i)] = serviceText(fmt.Sprintf("text-%d", i))
	}
	files["0.toml"] = serviceText("version-1")
	w.publish(1, files)
	f := &fleet{given: map[string]int{}, begun: time.Now()}
	f.run(t, w.URL+indexPath)
	pace.Until(t, "the first version", func() bool { return f.has(1) == fleetHosts })
	t.Logf("start: %d hosts have %d texts each after %v", fleetHosts, fleetTexts, time.Since(f.begun).Round(time.Millisecond))

	f.idle(t, w)
	for version := 2; version < 2+fleetChanges; version++ {
		files["0.toml"] = serviceText(fmt.Sprintf("version-%d", version))
		f.mu.Lock()
		f.begun = time.Now()
		f.mu.Unlock()
		w.publish(version, files)
		pace.Until(t, "the next version", func() bool { return f.has(version) == fleetHosts })
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	slices.Sort(f.took)
	n := len(f.took)
	t.Logf("a change of one of %d texts, from the server to the sink, of %d: p50 %v, p99 %v, most %v", fleetTexts, n, f.took[n/2].Round(time.Millisecond), f.took[n*99/100].Round(time.Millisecond), f.took[n-1].Round(time.Millisecond))
	for i := 1; i < fleetTexts; i++ {
		if n := w.count(fmt.Sprintf("200 /svc/%d.toml", i)); n != fleetHosts {
			t.Errorf("text %d was sent %d times to %d hosts", i, n, fleetHosts)
		}
	}
}

// idle counts the requests of hosts while nothing changes.
func (f *fleet) idle(t *testing.T, w *web) {
	whole, same, before, begun := w.count("200 "+indexPath), w.count("304 "+indexPath), processor(t), time.Now()
	time.Sleep(fleetIdle)
	took := time.Since(begun)
	same = w.count("304 "+indexPath) - same
	t.Logf("idle: %d answers 304 in %v, %.2f for each host and interval; %v of processor for each, server and host together",
		same, took.Round(time.Millisecond), float64(same)/fleetHosts/(float64(took)/float64(fleetInterval)), ((processor(t) - before) / time.Duration(max(1, same))).Round(time.Microsecond))
	if n := w.count("200 "+indexPath) - whole; n != 0 {
		t.Errorf("the index was sent %d times", n)
	}
	if most := fleetHosts * (1 + int(float64(took)/(0.9*float64(fleetInterval)))); same == 0 || same > most {
		t.Errorf("%d requests, want 1 to %d", same, most)
	}
}

// serviceText returns a service file with one service.
func serviceText(name string) string {
	return fmt.Sprintf("[[services]]\nname = %q\nvips = [\"10.96.0.1\"]\nports = [{ port = 80 }]\nendpoints = [\"10.0.0.1\"]\n", name)
}

func (f *fleet) run(t *testing.T, url string) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	t.Cleanup(func() { cancel(); wg.Wait() })
	for i := range fleetHosts {
		o := Options{URLs: []string{url}, Host: fmt.Sprintf("node-%d", i), Interval: fleetInterval, Timeout: time.Minute, MaxSize: 1 << 20}
		src := file.New(file.Options{Name: Name, Fetcher: New(o), Server: url})
		wg.Go(func() { _ = src.Run(ctx, f) })
	}
}

// Apply implements source.Sink.
func (f *fleet) Apply(ch source.Changes) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, u := range ch.Set {
		for _, s := range u.Services {
			f.given[s.Key.Name]++
			if len(ch.Set) == 1 { // a change
				f.took = append(f.took, time.Since(f.begun))
			}
		}
	}
}

// Synced implements source.Sink.
func (f *fleet) Synced(string) {}

func (f *fleet) has(version int) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.given[fmt.Sprintf("version-%d", version)]
}

// processor returns the processor time that this process has used.
func processor(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	fatal.If(t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
