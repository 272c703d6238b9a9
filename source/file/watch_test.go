package file

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"

	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/source/disk"
	"svcproxy.dev/svcproxy/source/watch"
)

// A watcher that cannot be made is told of, and tried again.
func TestFailedWatcherIsRetried(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/a.toml", "a 1\n")
	f := &fixture{T: t, dir: dir, sink: newRecorder(t, dir)}
	f.src = New(Options{Dir: dir, Poll: time.Hour})
	f.src.parse, f.src.parseCopy = parseLines, parseLines
	tries := 0
	f.src.open = func(dir string, disks *disk.Asker) (*watch.Watcher, error) {
		if tries++; tries < 3 {
			return nil, errors.New("too many open files")
		}
		return watch.New(dir, disks)
	}
	f.stop = f.loop()
	defer func() { f.stop(); f.src.watcher.Close() }()
	f.sink.await("at first", "a.toml: a 1")
	want := []string{"service files cannot be watched, and are listed every second: too many open files"}
	if got := f.src.Status().Warnings; !slices.Equal(got, want) {
		t.Errorf("warnings: %q; want %q", got, want)
	}
	pace.UntilOr(t, func() bool { return len(f.src.Status().Warnings) == 0 }, func() string {
		return fmt.Sprintf("warnings: %q", f.src.Status().Warnings)
	})
	write(t, dir+"/a.toml", "a 2\n")
	f.sink.await("with events", "a.toml: a 2")
}

// What happens to one of many links is no business of the others.
func TestOneOfManyLinks(t *testing.T) {
	dir, data := t.TempDir(), t.TempDir()
	for _, name := range []string{"a", "b", "c"} {
		write(t, data+"/"+name, name+" 1\n")
		check(t, os.Symlink(data+"/"+name, dir+"/"+name+".toml"))
	}
	src := New(Options{Dir: dir, Poll: time.Hour})
	src.parse, src.parseCopy, src.open = parseLines, parseLines, watch.New
	src.step(t.Context(), newRecorder(t, dir))
	defer src.watcher.Close()
	next := newStepTimer()
	defer next.timer.Stop()
	for _, path := range []string{data + "/b", dir + "/b.toml"} {
		src.todo = newWork()
		src.noteEvent(fsnotify.Event{Name: path, Op: fsnotify.Create}, next)
		if len(src.todo.names) != 1 || !src.todo.names["b.toml"] || src.todo.all {
			t.Errorf("after %s there is to look at %+v", path, src.todo)
		}
	}
}
