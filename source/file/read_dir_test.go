package file

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"

	"svcproxy.dev/svcproxy/source/disk"
	"svcproxy.dev/svcproxy/source/watch"
)

// Nobody waits for who writes a pipe.
func TestOpenPipeIsNotAwaited(t *testing.T) {
	path := t.TempDir() + "/fifo"
	check(t, syscall.Mkfifo(path, 0o644))
	if f, info, err := disk.Open(path); f != nil || info == nil || !errors.Is(err, disk.ErrNotRegular) {
		t.Errorf("Open of a pipe = %v, %v, %v; want %v", f, info, err, disk.ErrNotRegular)
	}
}

// When events are lost everything is listed.
func TestOverflowListsEverything(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/a.toml", "a 1\n")
	w, err := watch.New(dir, disk.NewAsker(dir))
	check(t, err)
	defer w.Close()
	errs := make(chan error)
	w.Replay(dir, nil, errs) // it hears nothing; losses are ours to report

	f := &fixture{T: t, dir: dir, src: New(Options{Dir: dir, Poll: time.Hour}), sink: newRecorder(t, dir)}
	f.src.parse, f.src.parseCopy, f.src.watcher = parseLines, parseLines, w
	f.stop = f.loop()
	defer f.stop()
	f.sink.await("start", "a.toml: a 1")
	write(t, dir+"/a.toml", "a 2\n")
	write(t, dir+"/b.toml", "b 1\n")
	time.Sleep(unwatchedPoll)
	if got, want := f.sink.state(), "a.toml: a 1"; got != want {
		t.Fatalf("without events the sink holds %q; want %q", got, want)
	}
	errs <- fsnotify.ErrEventOverflow
	f.sink.await("after an overflow", "a.toml: a 2; b.toml: b 1")
}
