package trust

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/internal/fatal"
)

// tree has /real/file, and a link to it in /links. Nobody but the user of the test can change any of them.
func tree(t *testing.T) (root string) {
	t.Helper()
	root, err := filepath.EvalSymlinks(t.TempDir())
	try(t, err)
	for _, dir := range []string{"/real", "/links"} {
		try(t, os.Mkdir(root+dir, 0o755))
	}
	try(t, os.WriteFile(root+"/real/file", nil, 0o644))
	try(t, os.Symlink("../real", root+"/links/dir"))
	try(t, os.Symlink("dir/./file", root+"/links/file"))
	return root
}

func try(t *testing.T, err error) {
	t.Helper()
	fatal.If(t, err)
}

func TestWriterNamesWhoCanChangeAPath(t *testing.T) {
	for _, tt := range []struct {
		name, path string
		mode       os.FileMode // of what
		what, want string      // behind the root of the tree
	}{
		{"a file", "/real/file", 0o644, "/real/file", ""},
		{"a link", "/links/file", 0o644, "/real/file", ""},
		{"a file that all can write", "/real/file", 0o666, "/real/file", "/real/file can be changed by everybody"},
		{"through a link", "/links/file", 0o666, "/real/file", "/real/file can be changed by everybody"},
		{"its directory", "/real/file", 0o777, "/real", "/real can be changed by everybody"},
		{"a sticky directory", "/real/file", 0o777 | os.ModeSticky, "/real", ""},
		{"the directory of a link to its directory", "/links/file", 0o777, "/links", "/links can be changed by everybody"},
		{"a directory that is not on the way", "/real/file", 0o777, "/links", ""},
	} {
		root := tree(t)
		try(t, os.Chmod(root+tt.what, tt.mode))
		got, err := Writer(root + tt.path)
		if err != nil || strings.TrimPrefix(got, root) != tt.want {
			t.Errorf("%s: %q, %v; want %q", tt.name, got, err, tt.want)
		}
	}
}

func TestWriterOfNoFile(t *testing.T) {
	root := tree(t)
	try(t, os.Symlink("loop", root+"/loop"))
	for path, want := range map[string]error{"/real/none": unix.ENOENT, "/loop": unix.ELOOP, "/real/file/x": unix.ENOTDIR} {
		if why, err := Writer(root + path); why != "" || !errors.Is(err, want) {
			t.Errorf("%s: %q, %v; want %v", path, why, err, want)
		}
	}
}
