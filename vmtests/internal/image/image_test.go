package image

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"time"
)

// All that goes into an image names it.
func TestKey(t *testing.T) {
	defer func(s []byte, p []string) { script, packages = s, p }(script, packages)
	seen := map[string]bool{}
	see := func(kernel string) {
		t.Helper()
		k := key(kernel)
		if seen[k] {
			t.Errorf("key %s came twice", k)
		}
		if seen[k] = true; key(kernel) != k {
			t.Error("the same image has two keys")
		}
	}
	see("6.1")
	see("6.2")
	packages = append(packages[:len(packages):len(packages)], "tcpdump")
	see("6.1")
	script = append(script[:len(script):len(script)], "true\n"...)
	see("6.1")
}

// Only one process at a time makes an image; the others wait as long as they want.
func TestLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "image.lock")
	unlock, err := lock(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := lock(ctx, path); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("locked twice: %v", err)
	}
	time.AfterFunc(50*time.Millisecond, unlock)
	unlock, err = lock(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	unlock()
}
