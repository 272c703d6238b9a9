//go:build bench

package file_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/BurntSushi/toml"
	"golang.org/x/sync/errgroup"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/file"
)

// manyFiles makes a directory of files of one service each.
func manyFiles(t *testing.T, n int) string {
	dir := t.TempDir()
	for i := range n {
		text := fmt.Sprintf("[[services]]\nname = \"s%d\"\nvips = [\"10.%d.%d.%d\"]\nports = [{ name = \"http\", port = 80, target_port = 8080 }]\nendpoints = [\"192.168.10.11\", \"192.168.10.12\"]\n",
			i, 96+i/65536, i/256%256, i%256)
		fatal.If(t, os.WriteFile(fmt.Sprintf("%s/s%05d.toml", dir, i), []byte(text), 0o600))
	}
	return dir
}

// plain reads and decodes all files on all cores, and does no more.
func plain(t *testing.T, dir string) {
	entries, err := os.ReadDir(dir)
	fatal.If(t, err)
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	for _, e := range entries {
		g.Go(func() error {
			data, err := os.ReadFile(filepath.Join(dir, e.Name()))
			if err != nil {
				return err
			}
			var v map[string]any
			_, err = toml.Decode(string(data), &v)
			return err
		})
	}
	fatal.If(t, g.Wait())
}

// A start is a sink that accepts everything, and ends a run once all files have
// been applied.
type start struct {
	src  *file.Source
	stop context.CancelFunc
}

// Apply implements source.Sink.
func (s start) Apply(ch source.Changes) { s.src.Accepted(ch.Set) }

// Synced implements source.Sink.
func (s start) Synced(string) { s.stop() }

// run starts a Source and returns how long its files take.
func run(t *testing.T, dir, stateDir string) time.Duration {
	ctx, cancel := context.WithCancel(t.Context())
	begin := time.Now()
	src := file.New(file.Options{Dir: dir, StateDir: stateDir})
	fatal.If(t, src.Run(ctx, start{src, cancel}))
	return time.Since(begin)
}

// The file part of a start takes at most twice a plain read and decode of all files.
func TestBenchFiles(t *testing.T) {
	dir, stateDir := manyFiles(t, 10_000), t.TempDir()
	first := run(t, dir, stateDir) // when nothing is recorded yet
	var ours, plains []time.Duration
	for range 7 { // by turns, so that both meet the same noise
		start := time.Now()
		plain(t, dir)
		plains = append(plains, time.Since(start))
		ours = append(ours, run(t, dir, stateDir))
	}
	slices.Sort(ours)
	slices.Sort(plains)
	ratio := float64(ours[3]) / float64(plains[3])
	t.Logf("10,000 files: %v (first start %v); plain read and decode: %v; ratio %.2f", ours[3], first, plains[3], ratio)
	if ratio > 2 {
		t.Errorf("ratio %.2f, want 2 at most", ratio)
	}
}
