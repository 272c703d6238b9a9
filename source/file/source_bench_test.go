package file

import (
	"context"
	"fmt"
	"testing"
	"time"

	"svcproxy/source"
)

// A signal is a sink that says when it was called.
type signal chan struct{}

// Apply implements source.Sink.
func (s signal) Apply(source.Changes) { s <- struct{}{} }

// Synced implements source.Sink.
func (s signal) Synced(string) {}

// From a file's last write to the sink, beside 10,000 other files. 5 ms of it
// are for events to be merged.
func BenchmarkChange(b *testing.B) {
	dir := b.TempDir()
	for i := range 10_000 {
		benchWrite(b, dir, i, 1)
	}
	sink := make(signal, 1)
	src := New(Options{Dir: dir, Poll: time.Hour})
	ctx, cancel := context.WithCancel(b.Context())
	done := make(chan error)
	start := time.Now()
	go func() { done <- src.Run(ctx, sink) }()
	<-sink
	load := time.Since(start)
	for n := 0; b.Loop(); n++ {
		benchWrite(b, dir, n%10_000, n%7+2)
		<-sink
	}
	b.ReportMetric(float64(load.Milliseconds()), "ms-load")
	cancel()
	<-done
}

func benchWrite(b *testing.B, dir string, i, weight int) {
	write(b, fmt.Sprintf("%s/s%d.toml", dir, i), fmt.Sprintf(`[[services]]
name = "s%d"
vips = ["10.%d.%d.10"]
ports = [{ port = 80 }]
endpoints = [{ address = "192.168.10.11", weight = %d }]
`, i, i/256, i%256, weight))
}
