//go:build bench

package file

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/source"
)

// A sink that tells when something came.
type arrivals chan struct{}

func (a arrivals) Apply(source.Changes) { a <- struct{}{} }
func (a arrivals) Synced(string)        {}

// How long a change of a list takes from its rename to the sink, beside a file of 10,000 services
// of which one, or all, refer to it. The file is not parsed again.
func BenchmarkListChange(b *testing.B) {
	for _, users := range []int{1, 10_000} {
		b.Run(fmt.Sprint(users), func(b *testing.B) {
			dir := b.TempDir()
			var text strings.Builder
			for i := range 10_000 {
				line := `endpoints = [{ address = "10.1.0.1" }, { address = "10.1.0.2" }, { address = "10.1.0.3" }, { address = "10.1.0.4" }]`
				if i < users {
					line = fromList
				}
				fmt.Fprintf(&text, "[[services]]\nname = \"s%d\"\nvips = [\"10.96.%d.%d\"]\nports = [{ port = 80 }]\n%s\n", i, i/250, i%250+1, line)
			}
			write(b, dir+"/web.toml", text.String())
			write(b, dir+"/web.endpoints.json", listOfN(10))
			src := New(Options{Dir: dir, StateDir: b.TempDir(), Poll: time.Hour, Log: slog.New(slog.DiscardHandler)})
			came := make(arrivals, 8)
			ctx, stop := context.WithCancel(b.Context())
			done := make(chan error)
			go func() { done <- src.Run(ctx, came) }()
			defer func() { stop(); <-done }()
			<-came
			for i := 0; b.Loop(); i++ {
				b.StopTimer()
				time.Sleep(20 * time.Millisecond)
				write(b, dir+"/.new", strings.ReplaceAll(listOfN(10), "10.1.0", fmt.Sprintf("10.1.%d", i%200+1)))
				b.StartTimer()
				check(b, os.Rename(dir+"/.new", dir+"/web.endpoints.json"))
				<-came
			}
		})
	}
}
