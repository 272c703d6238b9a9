package file_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/file"
)

// opened tells which names of a directory are opened, until none has been for a
// while. The kernel counts, so that no reading goes unseen.
func opened(t *testing.T, fd int) (names []string) {
	t.Helper()
	buf := make([]byte, 1<<16)
	for {
		ready, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 500)
		if err != nil || ready == 0 {
			return names
		}
		n, err := unix.Read(fd, buf)
		fatal.If(t, err)
		for off := 0; off < n; {
			ev := (*unix.InotifyEvent)(unsafe.Pointer(&buf[off]))
			name := buf[off+unix.SizeofInotifyEvent : off+unix.SizeofInotifyEvent+int(ev.Len)]
			if ev.Mask&unix.IN_ISDIR == 0 {
				names = append(names, string(bytes.TrimRight(name, "\x00")))
			}
			off += unix.SizeofInotifyEvent + int(ev.Len)
		}
	}
}

// applied is a sink that says what it got.
type applied chan source.Changes

// Apply implements source.Sink.
func (a applied) Apply(ch source.Changes) { a <- ch }

// Synced implements source.Sink.
func (applied) Synced(string) {}

// A change of one file reads that file, and no other.
func TestReadsWhatChanged(t *testing.T) {
	dir := t.TempDir()
	write := func(i int, port uint16) {
		text := fmt.Sprintf("[[services]]\nname = 's%d'\nvips = ['10.96.0.%d']\nports = [{ port = %d }]\n", i, i+1, port)
		fatal.If(t, os.WriteFile(fmt.Sprintf("%s/.new", dir), []byte(text), 0o600))
		fatal.If(t, os.Rename(dir+"/.new", fmt.Sprintf("%s/s%d.toml", dir, i)))
	}
	for i := range 100 {
		write(i, 80)
	}
	time.Sleep(100 * time.Millisecond) // so that the files have been as they are for a while
	ctx, cancel := context.WithCancel(t.Context())
	sink, done := make(applied, 1), make(chan error)
	go func() { done <- file.New(file.Options{Dir: dir, Poll: time.Hour}).Run(ctx, sink) }()
	<-sink
	defer func() { cancel(); <-done }()

	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	fatal.If(t, err)
	defer unix.Close(fd)
	if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_OPEN); err != nil {
		t.Fatal(err)
	}
	write(42, 81)
	if ch := <-sink; len(ch.Set) != 1 || ch.Set[0].Services[0].Ports[0].Port != 81 {
		t.Errorf("applied %+v", ch)
	}
	names := opened(t, fd)
	names = slices.DeleteFunc(names, func(name string) bool { return name == ".new" }) // by us
	for _, name := range names {
		if name != "s42.toml" {
			t.Errorf("%s was read, and has not changed", name)
		}
	}
	if len(names) == 0 {
		t.Error("s42.toml was not read: the count is wrong")
	}
}
