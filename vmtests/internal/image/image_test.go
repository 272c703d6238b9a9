package image

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
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

// withScript has another script make images, in a cache of the test's own.
func withScript(t *testing.T, text string) (cache string) {
	t.Helper()
	before := script
	t.Cleanup(func() { script = before })
	script = []byte("#!/bin/sh\nset -e\n" + text)
	cache = t.TempDir()
	t.Setenv(EnvCache, cache)
	return cache
}

// Several who need an image at once get the same one, made once and whole.
func TestGetAtOnce(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	cache := withScript(t, `mkdir "$1"; sleep 0.1; echo made >>`+log+`; touch "$1/vmlinuz"`)
	var g errgroup.Group
	for range 3 {
		g.Go(func() error {
			img, err := get(t.Context(), "6.1")
			if err == nil {
				_, err = os.Stat(img.Kernel())
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
	if text, err := os.ReadFile(log); string(text) != "made\n" {
		t.Errorf("log %q, %v", text, err)
	}
	entries, err := os.ReadDir(cache)
	if err != nil || len(entries) != 2 { // the image and the lock
		t.Errorf("the cache holds %v, %v", entries, err)
	}
}

// An image that cannot be made is not there, and the next one who needs it tries again.
func TestGetAfterAFailure(t *testing.T) {
	dir := t.TempDir()
	withScript(t, `mkdir "$1"; [ -e `+dir+`/works ] || { echo no network >&2; exit 1; }`)
	if _, err := get(t.Context(), "6.1"); err == nil || !strings.Contains(err.Error(), "no network") {
		t.Fatalf("error %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "works"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := get(t.Context(), "6.1"); err != nil {
		t.Error(err)
	}
}
