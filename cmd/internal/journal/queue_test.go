package journal

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"svcproxy.dev/svcproxy/internal/logtest"
)

// A gate takes lines when it is let to: one for each that is sent, and all when that is closed.
type gate struct {
	logtest.Text
	let chan struct{}
}

func (g *gate) Write(p []byte) (int, error) {
	<-g.let
	return g.Text.Write(p)
}

// lines returns those that were written.
func (g *gate) lines() []string {
	return strings.Split(strings.TrimSuffix(g.String(), "\n"), "\n")
}

func newGate() *gate { return &gate{let: make(chan struct{})} }

// numbered returns lines with these numbers, first to last.
func numbered(first, last int) (lines []string) {
	for i := first; i <= last; i++ {
		lines = append(lines, fmt.Sprintf("level=INFO msg=line n=%d", i))
	}
	return lines
}

func dropped(n int) string {
	return fmt.Sprintf("level=WARN msg=\"dropped log lines; the log reader is too slow\" lines=%d", n)
}

// logLines logs lines with these numbers.
func logLines(log *slog.Logger, first, last int) {
	for i := first; i <= last; i++ {
		log.Info("line", "n", i)
	}
}

func expect(t *testing.T, got []string, want ...[]string) {
	t.Helper()
	all := slices.Concat(want...)
	for i := range min(len(got), len(all)) {
		if got[i] != all[i] {
			t.Fatalf("line %d is %.100q, want %.100q", i, got[i], all[i])
		}
	}
	if len(got) != len(all) {
		t.Errorf("%d lines, want %d", len(got), len(all))
	}
}

// readWhile returns the lines that have a text, up to one that does not, which in then stands at.
func readWhile(in *bufio.Scanner, text string) (lines []string) {
	for in.Scan() && strings.Contains(in.Text(), text) {
		lines = append(lines, in.Text())
	}
	return lines
}

// Who logs waits for nobody, also where a pipe is not read, and the reader learns what it missed, and where.
func TestWritersNeverWaitForAReader(t *testing.T) {
	w, read := logtest.FullPipe(t)
	q := NewQueue(w)
	defer q.Close()
	log := slog.New(NewHandler(q, text))
	const lines = 100_000
	logLines(log, 1, lines)
	if warnings := strings.Join(q.Warnings(), "\n"); !strings.HasPrefix(warnings, "what takes the log does not read") {
		t.Errorf("status warns of %q", warnings)
	}
	in := read()
	expect(t, readWhile(in, "level=INFO"), numbered(1, maxLines))
	if want := dropped(lines - maxLines); in.Text() != want {
		t.Errorf("then %q, want %q", in.Text(), want)
	}
	log.Info("after")
	if in.Scan(); in.Text() != "level=INFO msg=after" {
		t.Errorf("then %q", in.Text())
	}
	if warnings := q.Warnings(); len(warnings) > 0 {
		t.Errorf("status still warns of %q", warnings)
	}
}

// Where what takes the log is slow, one line tells of many.
func TestSlowReaderGetsOneLineForMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		q := NewQueue(g)
		log := slog.New(NewHandler(q, text))
		logLines(log, 1, maxLines+3)
		for range maxLines/2 - 1 {
			g.let <- struct{}{}
		}
		synctest.Wait()
		logLines(log, 0, 0) // there is room, and it is dropped all the same
		g.let <- struct{}{}
		synctest.Wait()
		logLines(log, 7, 9)
		close(g.let)
		q.Close()
		expect(t, g.lines(), numbered(1, maxLines), []string{dropped(4)}, numbered(7, 9))
	})
}

// Long lines have a bound of their own, which does not hold for one that is alone.
func TestLongLinesHaveTheirOwnBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		q := NewQueue(g)
		NewHandler(q, text)
		write := func(size int) { fmt.Fprintln(q, strings.Repeat("x", size-1)) }
		const long = maxBytes / 4
		for range 6 {
			write(long)
		}
		write(1)
		close(g.let)
		synctest.Wait()
		write(2 * maxBytes)
		q.Close()
		line := strings.Repeat("x", long-1)
		expect(t, g.lines(), []string{line, line, line, line, dropped(3), strings.Repeat("x", 2*maxBytes-1)})
	})
}

// A line appears as soon as it can be written, with nothing after it.
func TestLineIsWrittenAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out logtest.Text
		q := NewQueue(&out)
		defer q.Close()
		begun := time.Now()
		logLines(slog.New(NewHandler(q, text)), 1, 1)
		synctest.Wait()
		if got := out.String(); got != numbered(1, 1)[0]+"\n" || time.Since(begun) > 0 {
			t.Errorf("after %v: %q", time.Since(begun), got)
		}
	})
}

// At the end all is written that is taken in time, with what was dropped.
func TestCloseWritesWhatIsQueued(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		q := NewQueue(g)
		logLines(slog.New(NewHandler(q, text)), 1, maxLines+5)
		time.AfterFunc(endPatience-1, func() { close(g.let) })
		q.Close()
		q.Close() // does nothing
		expect(t, g.lines(), numbered(1, maxLines), []string{dropped(5)})
		if _, err := io.WriteString(q, "late\n"); !errors.Is(err, os.ErrClosed) {
			t.Errorf("after the end: %v", err)
		}
	})
}

// What does not take them is not waited for.
func TestCloseWhileNobodyReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		q := NewQueue(g)
		logLines(slog.New(NewHandler(q, text)), 1, 2)
		begun := time.Now()
		if q.Close(); time.Since(begun) != endPatience || g.String() != "" {
			t.Errorf("after %v: %q", time.Since(begun), g.String())
		}
		close(g.let) // the goroutine ends with the test
	})
}

// writes keeps what it gets in each write.
type writes [][]byte

func (w *writes) Write(p []byte) (int, error) {
	*w = append(*w, bytes.Clone(p))
	return len(p), nil
}

// Each line is one write.
func TestEachLineIsOneWrite(t *testing.T) {
	var got writes
	q := NewQueue(&got)
	logLines(slog.New(NewHandler(q, text)), 1, 3)
	q.Close()
	for i, line := range numbered(1, 3) {
		if len(got) != 3 || string(got[i]) != line+"\n" {
			t.Errorf("written: %q", got)
		}
	}
}

// Lines keep their priorities in a queue to the journal, what tells of those that are missing has its own, and what a
// command fails with follows.
func TestPrioritiesInQueue(t *testing.T) {
	w, read := logtest.FullPipe(t)
	t.Setenv("JOURNAL_STREAM", stream(t, w))
	q := NewQueue(w)
	log := slog.New(NewHandler(q, text))
	log.Error("bad")
	logLines(log, 1, maxLines+1)
	in := read()
	calm := numbered(1, maxLines-1)
	for i := range calm {
		calm[i] = "<6>" + calm[i]
	}
	expect(t, append(readWhile(in, "=bad"), in.Text()), []string{"<3>level=ERROR msg=bad"}, calm[:1])
	expect(t, append(readWhile(in, "level=INFO"), in.Text()), calm[1:], []string{"<4>" + dropped(2)})
	fmt.Fprintln(q, Failure(q, errors.New("a\nb")))
	q.Close()
	w.Close()
	expect(t, readWhile(in, ""), []string{"<3>a", "<3>b"})
}
