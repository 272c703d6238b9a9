package file

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/read"
)

// A signal is a sink that says when it was called.
type signal chan struct{}

// Apply implements source.Sink.
func (s signal) Apply(source.Changes) { s <- struct{}{} }

// Synced implements source.Sink.
func (s signal) Synced(string) {}

// From a file's last write to the sink, beside 10,000 other files, and while a large
// one is read again and again. It includes the time for which events are merged.
func BenchmarkChange(b *testing.B) {
	b.Run("alone", func(b *testing.B) { benchChange(b, nil) })
	b.Run("beside", func(b *testing.B) {
		large := manyServices(slices.Repeat([]int{10}, 60_000)...)
		benchChange(b, append(large, "prot = 1\n"...))
	})
}

func benchChange(b *testing.B, large []byte) {
	dir := b.TempDir()
	for i := range 10_000 {
		benchWrite(b, dir, i, 1)
	}
	sink := make(signal, 1)
	src := New(Options{Dir: dir, Poll: time.Hour})
	ctx, cancel := context.WithCancel(b.Context())
	done, stop := make(chan error), make(chan struct{})
	start := time.Now()
	go func() { done <- src.Run(ctx, sink) }()
	<-sink
	load := time.Since(start)
	go func() { // it is broken, so the sink is not told
		defer close(stop)
		for i := 0; large != nil && ctx.Err() == nil; i++ {
			text := strings.ReplaceAll(string(large), "port = 80", fmt.Sprintf("port = %d", 80+i))
			check(b, os.WriteFile(dir+"/.new", []byte(text), 0o600))
			check(b, os.Rename(dir+"/.new", dir+"/large.toml"))
			time.Sleep(time.Second)
		}
	}()
	var took []time.Duration
	for n := 0; b.Loop(); n++ {
		begin := time.Now()
		benchWrite(b, dir, n%10_000, n%7+2)
		<-sink
		took = append(took, time.Since(begin))
		time.Sleep(mergeTime)
	}
	slices.Sort(took)
	b.ReportMetric(float64(load.Milliseconds()), "ms-load")
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "ms-median")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "ms-99%")
	cancel()
	<-done
	<-stop
}

// What a change of one service costs in a file of 10,000, from the write until it is
// kept, without and with a warning in each, and where every service is read again.
func BenchmarkChangeLarge(b *testing.B) {
	for _, bb := range []struct {
		name, warn string
		all        bool
	}{{name: "plain"}, {name: "warnings", warn: "session_affinity_timeout = \"10s\"\n"}, {name: "all", all: true}} {
		b.Run(bb.name, func(b *testing.B) {
			endpoints := slices.Repeat([]int{10}, 10_000)
			text := func(n int) []byte {
				endpoints[7000] = 10 + n%2
				return bytes.ReplaceAll(manyServices(endpoints...), []byte("ports = "), []byte(bb.warn+"ports = "))
			}
			dir := b.TempDir()
			put := func(data []byte) {
				check(b, os.WriteFile(dir+"/.new", data, 0o600))
				check(b, os.Rename(dir+"/.new", dir+"/a.toml"))
			}
			texts := [][]byte{text(0), text(1)}
			put(texts[1])
			src := New(Options{Dir: dir, StateDir: b.TempDir(), Poll: time.Hour})
			if bb.all {
				src.parse = func(rules read.Rules, ctx context.Context, path string, data []byte, _ read.KnownServices) ([]*source.Service, []source.Fault, read.KnownServices) {
					return rules.ParseNew(ctx, path, data, nil)
				}
			}
			sink := &telling{src, make(signal, 1)}
			ctx, cancel := context.WithCancel(b.Context())
			done := make(chan error)
			go func() { done <- src.Run(ctx, sink) }()
			<-sink.signal
			runtime.GC()
			before, n := worked(b), 0
			for ; b.Loop(); n++ {
				put(texts[n%2])
				<-sink.signal
				for !src.store.OnDisk() {
					time.Sleep(time.Millisecond)
				}
			}
			b.ReportMetric(float64((worked(b)-before).Microseconds())/1000/float64(n), "cpu-ms/op")
			cancel()
			<-done
		})
	}
}

// A telling sink accepts everything, and says when it was called.
type telling struct {
	src *Source
	signal
}

// Apply implements source.Sink.
func (s *telling) Apply(ch source.Changes) {
	s.src.Accepted(ch.Set)
	s.signal.Apply(ch)
}

// worked returns how long this process has worked.
func worked(t testing.TB) time.Duration {
	t.Helper()
	var u unix.Rusage
	check(t, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// A start with 10,000 files: the first one, one that finds all of them recorded,
// and for comparison one without a state directory.
func BenchmarkStart(b *testing.B) {
	dir, state := b.TempDir(), b.TempDir()
	for i := range 10_000 {
		benchWrite(b, dir, i, 1)
	}
	run := func(b *testing.B, state string) (start, kept time.Duration) {
		src := New(Options{Dir: dir, StateDir: state, Poll: time.Hour})
		sink := &accepting{src: src, synced: make(chan struct{})}
		ctx, cancel := context.WithCancel(b.Context())
		done := make(chan error)
		begin := time.Now()
		go func() { done <- src.Run(ctx, sink) }()
		<-sink.synced
		start = time.Since(begin)
		for state != "" && len(src.store.Names()) < 10_000 {
			time.Sleep(time.Millisecond)
		}
		kept = time.Since(begin)
		cancel()
		<-done
		return start, kept
	}
	for _, bb := range []struct {
		name  string
		state func() string
	}{
		{"stateless", func() string { return "" }},
		{"first", func() string { return b.TempDir() }},
		{"recorded", func() string { return state }},
	} {
		b.Run(bb.name, func(b *testing.B) {
			if bb.name == "recorded" {
				run(b, state)
			}
			var started, kept time.Duration
			for b.Loop() {
				s, k := run(b, bb.state())
				started, kept = started+s, kept+k
			}
			b.ReportMetric(float64(started.Milliseconds())/float64(b.N), "ms-synced")
			b.ReportMetric(float64(kept.Milliseconds())/float64(b.N), "ms-kept")
		})
	}
}

// An accepting sink accepts everything.
type accepting struct {
	src    *Source
	synced chan struct{}
}

// Apply implements source.Sink.
func (a *accepting) Apply(ch source.Changes) { a.src.Accepted(ch.Set) }

// Synced implements source.Sink.
func (a *accepting) Synced(string) { close(a.synced) }

func benchWrite(b *testing.B, dir string, i, weight int) {
	write(b, fmt.Sprintf("%s/s%d.toml", dir, i), fmt.Sprintf(`[[services]]
name = "s%d"
vips = ["10.%d.%d.10"]
ports = [{ port = 80 }]
endpoints = [{ address = "192.168.10.11", weight = %d }]
`, i, i/256, i%256, weight))
}

// manyServices is the text of services with so many endpoints each.
func manyServices(endpoints ...int) []byte {
	var b strings.Builder
	for i, n := range endpoints {
		list := make([]string, n)
		for j := range list {
			list[j] = fmt.Sprintf("\"10.%d.%d.%d\"", i%250+1, i/250+j/250, j%250+1)
		}
		fmt.Fprintf(&b, "[[services]]\nname = \"s%d\"\nvips = [\"10.96.%d.%d\"]\nports = [{ port = 80 }]\nendpoints = [%s]\n\n", i, i/250, i%250+1, strings.Join(list, ", "))
	}
	return []byte(b.String())
}
