package watch

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/source/disk"
)

func TestWarnRemote(t *testing.T) {
	is := func(magic int64) func(string, *unix.Statfs_t) error {
		return func(_ string, st *unix.Statfs_t) error { st.Type = magic; return nil }
	}
	tests := []struct {
		name   string
		statfs func(string, *unix.Statfs_t) error
		want   string // in the log; empty: nothing is logged
	}{
		{"nfs", is(unix.NFS_SUPER_MAGIC), "file_system=NFS"},
		{"cifs", is(unix.CIFS_SUPER_MAGIC), "file_system=CIFS"},
		{"ext4", is(unix.EXT4_SUPER_MAGIC), ""},
		{"no directory", func(string, *unix.Statfs_t) error { return errors.New("no") }, ""},
		{"this host's", unix.Statfs, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var b bytes.Buffer
			WarnRemote(slog.New(slog.NewTextHandler(&b, nil)), t.TempDir(), time.Second, tt.statfs)
			if tt.want == "" && b.Len() > 0 || !strings.Contains(b.String(), tt.want) {
				t.Errorf("log %q, want %q", &b, tt.want)
			}
		})
	}
}

func TestTracerOfEvents(t *testing.T) {
	root, err := filepath.EvalSymlinks(t.TempDir())
	fatal.If(t, err)
	fatal.If(t, os.MkdirAll(root+"/real/deep", 0o755))
	fatal.If(t, os.WriteFile(root+"/real/deep/file", nil, 0o600))
	fatal.If(t, os.Symlink("real", root+"/rel"))
	fatal.If(t, os.Symlink(root+"/rel/deep", root+"/abs"))
	fatal.If(t, os.Symlink("deep/../../abs/file", root+"/real/dots"))
	fatal.If(t, os.Symlink("loop", root+"/loop"))

	tests := []struct {
		path, leads string
		passed      []string
	}{
		{"/real/deep/file", "/real/deep/file", []string{"/real/deep/file"}},
		{"/rel/deep/file", "/real/deep/file", []string{"/rel", "/real/deep/file"}},
		{"/abs/file", "/real/deep/file", []string{"/abs", "/rel", "/real/deep/file"}},
		{"/real/dots", "/real/deep/file", []string{"/real/dots", "/abs", "/rel", "/real/deep/file"}},
		{"/real/no/such", "", []string{"/real/no"}},
		{"/loop", "", []string{"/loop"}},
	}
	for _, tt := range tests {
		leads, passed := newTracer(disk.NewAsker("/etc")).trace(root + tt.path)
		for i := range passed {
			passed[i] = strings.TrimPrefix(passed[i], root)
		}
		if strings.TrimPrefix(leads, root) != tt.leads {
			t.Errorf("%s leads to %q; want %q", tt.path, leads, tt.leads)
		}
		if got := slices.Compact(passed); !slices.Equal(got, tt.passed) {
			t.Errorf("%s: passes %q; want %q", tt.path, got, tt.passed)
		}
	}
}

// A watcher watches what its links need, whichever of them change.
func TestFollowWatchesWhatLinksNeed(t *testing.T) {
	root, err := filepath.EvalSymlinks(t.TempDir())
	fatal.If(t, err)
	for _, d := range []string{"/etc", "/one", "/two", "/three"} {
		fatal.If(t, os.Mkdir(root+d, 0o755))
	}
	w, err := New(root+"/etc", disk.NewAsker(root+"/etc"))
	fatal.If(t, err)
	defer w.Close()
	isLink := func(name string) bool { _, err := os.Readlink(root + "/etc/" + name); return err == nil }
	wants := func(names string, dirs ...string) {
		t.Helper()
		fatal.If(t, w.WatchLinks(strings.Fields(names), isLink))
		needed, meaning := w.needed, w.linksOver
		fatal.If(t, w.WatchAll(slices.DeleteFunc([]string{"a", "b", "c"}, func(name string) bool { return !isLink(name) })))
		if diff := cmp.Diff(w.needed, needed) + cmp.Diff(w.linksOver, meaning); diff != "" {
			t.Errorf("of all links, and of %s (-want +got):\n%s", names, diff)
		}
		var got []string
		for _, d := range w.WatchList() {
			got = append(got, strings.TrimPrefix(d, root))
		}
		slices.Sort(got)
		if want := append([]string{"/etc"}, dirs...); !slices.Equal(got, want) {
			t.Errorf("watches %q; want %q", got, want)
		}
	}
	fatal.If(t, w.WatchAll(nil))
	wants("")
	fatal.If(t, os.Symlink("../one/a", root+"/etc/a"))
	fatal.If(t, os.Symlink("../one/b", root+"/etc/b"))
	fatal.If(t, os.Symlink("c", root+"/etc/c")) // leads to itself
	wants("a b c", "/one")
	fatal.If(t, os.Remove(root+"/etc/a"))
	fatal.If(t, os.Symlink("../two/a", root+"/etc/a"))
	wants("a", "/one", "/two")
	if a := w.Classify(fsnotify.Event{Name: root + "/two/a"}); len(a.Links) != 1 || !a.Links["a"] || a.All {
		t.Errorf("what a leads to is about %v", a)
	}
	fatal.If(t, os.Remove(root+"/etc/b"))
	fatal.If(t, os.Remove(root+"/etc/c"))
	wants("b c", "/two")
	fatal.If(t, os.Remove(root+"/etc/a"))
	wants("a")
	if a := w.Classify(fsnotify.Event{Name: root + "/two/a"}); len(a.Links) != 0 {
		t.Errorf("what a led to is about %v", a)
	}
}

// The directory stays watched while what it is in does not answer.
func TestWatchOutlivesSilence(t *testing.T) {
	root, err := filepath.EvalSymlinks(t.TempDir())
	fatal.If(t, err)
	fatal.If(t, os.Mkdir(root+"/etc", 0o755))
	disks, dead := disk.NewAsker(root+"/etc"), make(chan struct{})
	defer close(dead)
	w, err := New(root+"/etc", disks)
	fatal.If(t, err)
	defer w.Close()
	fatal.If(t, w.WatchAll(nil))
	disks.BeginStep(time.Millisecond)
	disk.Ask(disks, root, func() bool { <-dead; return true })
	disks.BeginStep(disk.Patience)
	fatal.If(t, w.WatchAll(nil))
	if a := w.Classify(fsnotify.Event{Name: root + "/etc/a"}); a.Name != "a" || !slices.Contains(w.WatchList(), root+"/etc") {
		t.Errorf("an event is about %+v; watches %q", a, w.WatchList())
	}
}

// What others write beside the directory causes no event. What happens to the directory itself does.
func TestParentIsNotWatched(t *testing.T) {
	parent, err := filepath.EvalSymlinks(t.TempDir())
	fatal.If(t, err)
	dir := parent + "/etc"
	fatal.If(t, os.Mkdir(dir, 0o755))
	w, err := New(dir, disk.NewAsker(dir))
	fatal.If(t, err)
	defer w.Close()
	steps := []struct {
		name    string
		do      func() error
		watched string // after it
	}{
		{"renamed away", func() error { return os.Rename(dir, parent+"/old") }, parent},
		{"another one renamed to its place", func() error { return os.Rename(parent+"/old", dir) }, dir},
		{"removed", func() error { return os.Remove(dir) }, parent},
		{"made again", func() error { return os.Mkdir(dir, 0o700) }, dir},
		{"another one renamed over it", func() error { return unix.Rename(mkdir(t, parent+"/new"), dir) }, dir},
		{"exchanged", func() error {
			return unix.Renameat2(unix.AT_FDCWD, mkdir(t, parent+"/newer"), unix.AT_FDCWD, dir, unix.RENAME_EXCHANGE)
		}, dir},
		{"its mode changed", func() error { return os.Chmod(dir, 0o755) }, dir},
	}
	fatal.If(t, w.WatchAll(nil))
	watched := dir
	for _, s := range steps {
		fatal.If(t, os.WriteFile(parent+"/others", []byte(s.name), 0o600))
		fatal.If(t, s.do())
		for ev := range w.Events {
			if w.Classify(ev).All {
				break
			}
			if watched == dir && ev.Name == parent+"/others" {
				t.Errorf("%s: the watcher reports %v", s.name, ev)
			}
		}
		fatal.If(t, w.WatchAll(nil))
		if watched = strings.Join(w.WatchList(), " "); watched != s.watched {
			t.Errorf("%s: watches %q; want %q", s.name, watched, s.watched)
		}
	}
}

func mkdir(t *testing.T, path string) string {
	t.Helper()
	fatal.If(t, os.Mkdir(path, 0o755))
	return path
}
