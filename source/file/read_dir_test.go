package file

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"

	"svcproxy.dev/svcproxy/source/disk"
	"svcproxy.dev/svcproxy/source/watch"
)

func TestIsServiceFile(t *testing.T) {
	tests := map[string]bool{
		"a.toml": true, "a.json": true, "a.b.toml": true, "10-a.json": true, "svcproxy.json": true, "xsvcproxy.toml": true,
		"svcproxy.toml": false, ".a.toml": false, ".toml": false, "a.toml~": false, ".a.toml.swp": false, "a.toml.tmp": false,
		"a.toml.bak": false, "a.json.orig": false, "a.toml.rej": false, "a.toml.dpkg-old": false, "a.toml.rpmsave": false,
		"a.yaml": false, "a.TOML": false, "toml": false, "": false, "#a.toml#": false, "4913": false,
	}
	for name, want := range tests {
		if got := isServiceFile(name); got != want {
			t.Errorf("isServiceFile(%q) = %v; want %v", name, got, want)
		}
	}
}

func TestReadDir(t *testing.T) {
	const maxSize = 4096
	dir := t.TempDir()
	write(t, dir+"/b.toml", "b 2\nhm\n")
	write(t, dir+"/a.json", "a 1\nbad\n")
	write(t, dir+"/svcproxy.toml", "s 1\n")
	write(t, dir+"/large.toml", strings.Repeat("a 1\n", maxSize/4)+"x")
	write(t, dir+"/largest.toml", "big 1"+strings.Repeat(" ", maxSize-5))
	check(t, syscall.Mkfifo(dir+"/fifo.toml", 0o644))
	check(t, syscall.Mknod(dir+"/socket.toml", syscall.S_IFSOCK|0o644, 0))
	check(t, os.Symlink("/dev/zero", dir+"/device.toml"))
	check(t, os.Symlink("nowhere", dir+"/dangling.toml"))
	check(t, os.Symlink("loop.toml", dir+"/loop.toml"))
	check(t, os.Symlink(dir, dir+"/dir.toml"))
	check(t, os.Mkdir(dir+"/sub.toml", 0o755))
	check(t, os.Symlink("b.toml", dir+"/link.toml"))

	files, err := Rules{Limits: Limits{FileSize: maxSize}}.readDir(dir, nil, parseLines)
	check(t, err)
	var got []string
	for _, f := range files {
		line := strings.TrimPrefix(f.Path, dir+"/") + fmt.Sprintf(" %d", len(f.Services))
		for _, fault := range f.Faults {
			line += "; " + strings.ReplaceAll(fault.String(), dir+"/", "")
		}
		got = append(got, line)
	}
	want := []string{
		"a.json 0; a.json: bad",
		"b.toml 1; b.toml: warning: hm",
		"dangling.toml 0; dangling.toml: cannot be read: no such file or directory",
		"device.toml 0; device.toml: cannot be read: it is not a regular file",
		"fifo.toml 0; fifo.toml: cannot be read: it is not a regular file",
		"large.toml 0; large.toml: the file has more than 4096 bytes; split it, or raise file_size in [limits] of svcproxy.toml",
		"largest.toml 1",
		"link.toml 1; link.toml: warning: hm",
		"loop.toml 0; loop.toml: cannot be read: too many levels of symbolic links",
		"socket.toml 0; socket.toml: cannot be read: it is not a regular file",
	}
	if !slices.Equal(got, want) {
		t.Errorf("ReadDir\n got: %s\nwant: %s", strings.Join(got, "\n      "), strings.Join(want, "\n      "))
	}
}

func TestReadDirError(t *testing.T) {
	dir := t.TempDir() + "/no"
	_, err := Rules{}.ReadDir(dir, nil)
	want := "listing service files: open " + dir + ": no such file or directory"
	if err == nil || err.Error() != want || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("ReadDir error\n got: %v\nwant: %s", err, want)
	}
}

// ReadFile takes any name: check is told which file to look at.
func TestReadFile(t *testing.T) {
	path := t.TempDir() + "/draft"
	write(t, path, "services = []\n")
	if f := (Rules{}).ReadFile(path); f.Path != path || len(f.Services) != 0 || len(f.Faults) != 0 {
		t.Errorf("ReadFile = %v; want no services and no faults", f)
	}
}

// Nobody waits for who writes a pipe.
func TestOpenPipe(t *testing.T) {
	path := t.TempDir() + "/fifo"
	check(t, syscall.Mkfifo(path, 0o644))
	if f, info, err := disk.Open(path); f != nil || info == nil || !errors.Is(err, disk.ErrNotRegular) {
		t.Errorf("Open of a pipe = %v, %v, %v; want %v", f, info, err, disk.ErrNotRegular)
	}
}

// When events are lost everything is listed.
func TestOverflow(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/a.toml", "a 1\n")
	w, err := watch.New(dir)
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
