package journal

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/internal/fatal"
)

// open returns a file and what JOURNAL_STREAM is where it is the journal.
func open(t *testing.T) (*os.File, string) {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "log"))
	fatal.If(t, err)
	t.Cleanup(func() { f.Close() })
	return f, stream(t, f)
}

// stream returns what JOURNAL_STREAM is where f is the journal.
func stream(t *testing.T, f *os.File) string {
	t.Helper()
	var st unix.Stat_t
	fatal.If(t, unix.Fstat(int(f.Fd()), &st))
	return fmt.Sprintf("%d:%d", st.Dev, st.Ino)
}

func text(w io.Writer) slog.Handler {
	return slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}})
}

func TestPriorityOfEachLevel(t *testing.T) {
	f, stream := open(t)
	other, _ := open(t)
	const plain = "level=DEBUG msg=a\nlevel=INFO msg=b\nlevel=WARN msg=\"c\\nd\" k=v\nlevel=ERROR msg=e g.k=v\n"
	tests := []struct {
		name, stream string
		to           *os.File
		want         string
	}{
		{"the journal", stream, f, "<7>level=DEBUG msg=a\n<6>level=INFO msg=b\n<4>level=WARN msg=\"c\\nd\" k=v\n<3>level=ERROR msg=e g.k=v\n"},
		{"another file", stream, other, plain},
		{"no journal", "", f, plain},
		{"nonsense", "1:2:3", f, plain},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv("JOURNAL_STREAM", tt.stream)
			fatal.If(t, tt.to.Truncate(0))
			if _, err := tt.to.Seek(0, io.SeekStart); err != nil {
				t.Fatal(err)
			}
			log := slog.New(NewHandler(tt.to, text))
			log.Debug("a")
			log.Info("b")
			log.With("k", "v").Warn("c\nd")
			log.WithGroup("g").Error("e", "k", "v")
			got, err := os.ReadFile(tt.to.Name())
			if err != nil || string(got) != tt.want {
				t.Errorf("got:\n%s\nwant:\n%s (%v)", got, tt.want, err)
			}
		})
	}
}

// Lines that come at once keep their own priorities, and stay whole.
func TestLinesAtOnceKeepTheirPriorities(t *testing.T) {
	var b strings.Builder
	log := slog.New(prioritized(&b, text))
	var all sync.WaitGroup
	for range 100 {
		all.Go(func() { log.Info("calm") })
		all.Go(func() { log.With("k", 1).Error("bad") })
	}
	all.Wait()
	if c, bad := strings.Count(b.String(), "<6>level=INFO msg=calm\n"), strings.Count(b.String(), "<3>level=ERROR msg=bad k=1\n"); c != 100 || bad != 100 {
		t.Errorf("%d and %d whole lines, want 100 of each", c, bad)
	}
}

func TestFailureOfACommandIsOneLine(t *testing.T) {
	f, stream := open(t)
	err := errors.New("a\nb")
	if got := Failure(f, err); got != "a\nb" {
		t.Errorf("to a terminal: %q", got)
	}
	t.Setenv("JOURNAL_STREAM", stream)
	if got := Failure(f, err); got != "<3>a\n<3>b" {
		t.Errorf("to the journal: %q", got)
	}
}
