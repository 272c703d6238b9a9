package remote

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"svcproxy.dev/svcproxy/internal/fatal"
)

// A failure shortens the wait, and never makes it longer.
func TestFailureShortensDeadline(t *testing.T) {
	const short, long = time.Second, 5 * time.Second
	for _, tt := range []struct{ after, want time.Duration }{
		{0, short},
		{2 * time.Second, 2*time.Second + short},
		{long - short/2, long},
	} {
		synctest.Test(t, func(t *testing.T) {
			begin, d := time.Now(), NewDeadline(long)
			time.Sleep(tt.after)
			d.Within(short)
			if <-d.C; time.Since(begin) != tt.want {
				t.Errorf("failed after %v: waited %v, want %v", tt.after, time.Since(begin), tt.want)
			}
		})
	}
}

// Why nothing can be kept is said once, and again when that changes or comes back.
func TestKeeperWarnsOnce(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "gone")
	var log bytes.Buffer
	k := NewKeeper(filepath.Join(dir, "k"), slog.New(slog.NewTextHandler(&log, nil)), nil)
	said := func(what string, want int) {
		t.Helper()
		k.write(new(Head), nil)
		k.write(new(Head), nil)
		if n := strings.Count(log.String(), "level=WARN"); n != want {
			t.Errorf("%s: %d warnings, want %d: %s", what, n, want, log.String())
		}
	}
	put := func(err error) {
		t.Helper()
		fatal.If(t, err)
	}
	said("no directory", 1)
	put(os.WriteFile(dir, nil, 0o600))
	said("a file in its place", 2)
	put(os.Remove(dir))
	put(os.Mkdir(dir, 0o700))
	said("in order", 2)
	put(os.RemoveAll(dir))
	said("no directory again", 3)
}

// A blockingLog is told something and does not come back before it is released.
type blockingLog struct {
	slog.Handler
	release chan struct{}
}

func (b *blockingLog) Enabled(context.Context, slog.Level) bool      { return true }
func (b *blockingLog) Handle(_ context.Context, _ slog.Record) error { <-b.release; return nil }

// A write that hangs does not hold up the end, whether it began before or then.
func TestHangingWriteDoesNotDelayTheEnd(t *testing.T) {
	for _, before := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			hang := &blockingLog{slog.DiscardHandler, make(chan struct{})}
			k := NewKeeper(filepath.Join(t.TempDir(), "gone", "k"), slog.New(hang), func() (Header, []Handed) { return new(Head), nil })
			k.Note()
			if before {
				k.Save(k.due)
				k.Note()
			}
			begin := time.Now()
			k.End(true)
			if took := time.Since(begin); took != endWait {
				t.Errorf("hangs before the end %v: ended after %v, want %v", before, took, endWait)
			}
			close(hang.release)
		})
	}
}

// What could not be written is written again, and nothing after that.
func TestKeeperTriesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "gone")
		k := NewKeeper(filepath.Join(dir, "k"), slog.New(slog.DiscardHandler), func() (Header, []Handed) { return new(Head), nil })
		saves := func(n int) {
			for range n {
				at, _ := k.Due()
				k.Save(at)
				k.Idle(nil)
			}
		}
		k.Note()
		saves(3)
		if at, some := k.Due(); !some || !at.After(time.Now()) {
			t.Errorf("while it cannot be written: due %v at %v", some, at)
		}
		fatal.If(t, os.Mkdir(dir, 0o700))
		saves(2)
		if _, err := os.Stat(k.path); err != nil {
			t.Error(err)
		}
		if _, some := k.Due(); some {
			t.Error("something is due after it was written")
		}
	})
}
