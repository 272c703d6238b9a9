package read

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/source"
)

func TestIsServiceFile(t *testing.T) {
	tests := map[string]bool{
		"a.toml": true, "a.json": true, "a.b.toml": true, "10-a.json": true, "svcproxy.json": true, "xsvcproxy.toml": true,
		"svcproxy.toml": false, ".a.toml": false, ".toml": false, "a.toml~": false, ".a.toml.swp": false, "a.toml.tmp": false,
		"a.toml.bak": false, "a.json.orig": false, "a.toml.rej": false, "a.toml.dpkg-old": false, "a.toml.rpmsave": false,
		"a.yaml": false, "a.TOML": false, "toml": false, "": false, "#a.toml#": false, "4913": false,
	}
	for name, want := range tests {
		if got := IsServiceFile(name); got != want {
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
	fatal.If(t, syscall.Mkfifo(dir+"/fifo.toml", 0o644))
	fatal.If(t, syscall.Mknod(dir+"/socket.toml", syscall.S_IFSOCK|0o644, 0))
	fatal.If(t, os.Symlink("/dev/zero", dir+"/device.toml"))
	fatal.If(t, os.Symlink("nowhere", dir+"/dangling.toml"))
	fatal.If(t, os.Symlink("loop.toml", dir+"/loop.toml"))
	fatal.If(t, os.Symlink(dir, dir+"/dir.toml"))
	fatal.If(t, os.Mkdir(dir+"/sub.toml", 0o755))
	fatal.If(t, os.Symlink("b.toml", dir+"/link.toml"))

	files, err := Rules{Limits: Limits{FileSize: maxSize}}.readDir(dir, nil, parseWords)
	fatal.If(t, err)
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

// parseWords takes each line for a service, but "bad" for a fault, and "hm" for a warning.
func parseWords(_ Rules, _ context.Context, path string, data []byte, _ KnownServices) (services []*source.Service, faults []source.Fault, _ KnownServices) {
	for line := range strings.Lines(string(data)) {
		switch line = strings.TrimSpace(line); line {
		case "bad", "hm":
			faults = append(faults, source.Fault{Pos: source.Position{File: path}, Msg: line, Warning: line == "hm"})
		default:
			services = append(services, &source.Service{})
		}
	}
	return services, faults, nil
}
