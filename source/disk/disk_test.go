package disk

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
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

// A text comes whole in parts, or ends where nobody wants it any more.
func TestReadBesideEndsWithItsContext(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	text := strings.Repeat("0123456789", partSize/4)
	fatal.If(t, os.WriteFile(path, []byte(text), 0o600))
	d := NewAsker(filepath.Dir(path))
	ctx, cancel := context.WithCancel(t.Context())
	if got, ok := d.ReadBeside(ctx, path, d.Lstat(path), len(text)); !ok || string(got.Data) != text || got.Err != nil {
		t.Errorf("%d bytes, %v; want %d", len(got.Data), got.Err, len(text))
	}
	cancel()
	if got, _ := d.ReadBeside(ctx, path, d.Lstat(path), len(text)); got.Err != context.Canceled {
		t.Errorf("%d bytes, %v; want %v", len(got.Data), got.Err, context.Canceled)
	}
}
