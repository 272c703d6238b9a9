package disk

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"svcproxy.dev/svcproxy/internal/fatal"
)

// A file is replaced whole, or not at all, and no draft is left.
func TestReplaceIsAtomic(t *testing.T) {
	dir := t.TempDir()
	path, draft := filepath.Join(dir, "file"), filepath.Join(dir, "file.new")
	holds := func(want string) {
		t.Helper()
		got, err := os.ReadFile(path)
		if err != nil || string(got) != want {
			t.Errorf("it holds %q, %v; want %q", got, err, want)
		}
		if _, err := os.Lstat(draft); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the draft is there: %v", err)
		}
	}
	fatal.If(t, os.WriteFile(draft, []byte("left by a program that was killed"), 0o600))
	for _, synced := range []bool{true, false} {
		for _, text := range []string{"one", "three", ""} {
			fatal.If(t, Replace(path, draft, synced, Bytes([]byte(text))))
			holds(text)
		}
	}
	fatal.If(t, Replace(path, draft, true, Bytes([]byte("old"))))
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	full := errors.New("the disk is full")
	err := Replace(path, draft, true, func(w io.Writer) error {
		_, _ = io.WriteString(w, "ne")
		return full
	})
	if !errors.Is(err, full) {
		t.Errorf("error %v", err)
	}
	holds("old")
	if err := Replace(dir, draft, true, Bytes(nil)); err == nil {
		t.Error("a directory was replaced")
	}
	holds("old")
	if err := Replace(filepath.Join(dir, "none", "file"), filepath.Join(dir, "none", "file.new"), true, Bytes(nil)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("in a directory that is not there: %v", err)
	}
}
