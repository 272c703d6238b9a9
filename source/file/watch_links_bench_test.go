package file

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// cpuTime is what this process has had of the processors.
func cpuTime(b *testing.B) time.Duration {
	var ru syscall.Rusage
	check(b, syscall.Getrusage(syscall.RUSAGE_SELF, &ru))
	return time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
}

// From the rename of what one of 3,000 links leads to, to the sink.
func BenchmarkLinks(b *testing.B) {
	for _, apart := range []bool{false, true} {
		b.Run(fmt.Sprintf("directories of their own %v", apart), func(b *testing.B) {
			dir, data := b.TempDir(), b.TempDir()
			target := func(i int) string {
				if apart {
					return fmt.Sprintf("%s/%d/s%d.toml", data, i, i)
				}
				return fmt.Sprintf("%s/s%d.toml", data, i)
			}
			for i := range 3000 {
				check(b, os.MkdirAll(filepath.Dir(target(i)), 0o755))
				benchWrite(b, filepath.Dir(target(i)), i, 1)
				check(b, os.Symlink(target(i), fmt.Sprintf("%s/s%d.toml", dir, i)))
			}
			check(b, os.Mkdir(data+"/new", 0o755))
			sink := make(signal, 1)
			src := New(Options{Dir: dir, Poll: time.Hour})
			ctx, cancel := context.WithCancel(b.Context())
			done := make(chan error)
			go func() { done <- src.Run(ctx, sink) }()
			<-sink
			begin := cpuTime(b)
			for n := 0; b.Loop(); n++ {
				i := n % 3000
				benchWrite(b, data+"/new", i, n%7+2)
				check(b, os.Rename(fmt.Sprintf("%s/new/s%d.toml", data, i), target(i)))
				<-sink
			}
			b.ReportMetric(float64((cpuTime(b)-begin).Microseconds())/1000/float64(b.N), "ms-cpu/op")
			cancel()
			<-done
		})
	}
}
