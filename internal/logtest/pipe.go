package logtest

import (
	"bufio"
	"io"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// FullPipe returns a pipe that has no room until it is read, and what reads the lines that are written to it from
// then on. The test closes it.
func FullPipe(t testing.TB) (w *os.File, lines func() *bufio.Scanner) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = r.Close(), w.Close() })
	size, err := unix.FcntlInt(w.Fd(), unix.F_GETPIPE_SZ, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(make([]byte, size)); err != nil {
		t.Fatal(err)
	}
	return w, func() *bufio.Scanner {
		if _, err := io.CopyN(io.Discard, r, int64(size)); err != nil {
			t.Fatal(err)
		}
		return bufio.NewScanner(r)
	}
}
