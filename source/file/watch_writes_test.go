package file

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Every way to write a file. Only events can tell: the poll is an hour.
func TestWaysToWrite(t *testing.T) {
	tests := []struct {
		name string
		// prepare makes the directory d; change changes it while the source runs.
		prepare, change func(t *testing.T, d string)
		before, after   string
	}{
		{
			name:    "in place",
			prepare: func(t *testing.T, d string) { write(t, d+"/a.toml", "a 1\n") },
			change:  func(t *testing.T, d string) { write(t, d+"/a.toml", "a 2\n") },
			before:  "a.toml: a 1", after: "a.toml: a 2",
		},
		{
			name:    "truncated and written in pieces",
			prepare: func(t *testing.T, d string) { write(t, d+"/a.toml", "a 3\nb 3\n") },
			change: func(t *testing.T, d string) {
				f, err := os.Create(d + "/a.toml")
				check(t, err)
				defer f.Close()
				for _, piece := range []string{"a", " 4", "\nb", " 5\n"} {
					time.Sleep(20 * time.Millisecond)
					_, err := f.WriteString(piece)
					check(t, err)
				}
			},
			before: "a.toml: a 3, b 3", after: "a.toml: a 4, b 5",
		},
		{
			name:    "by way of a mapping",
			prepare: func(t *testing.T, d string) { write(t, d+"/a.toml", "a 1\n") },
			change: func(t *testing.T, d string) {
				f, err := os.OpenFile(d+"/a.toml", os.O_RDWR, 0)
				check(t, err)
				memory, err := unix.Mmap(int(f.Fd()), 0, 4, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
				check(t, err)
				copy(memory, "a 2\n")
				check(t, unix.Munmap(memory))
				check(t, f.Close())
			},
			before: "a.toml: a 1", after: "a.toml: a 2",
		},
		{
			name:    "renamed over",
			prepare: func(t *testing.T, d string) { write(t, d+"/a.toml", "a 1\n") },
			change: func(t *testing.T, d string) {
				write(t, d+"/.a.toml.tmp", "a 2\n")
				check(t, os.Rename(d+"/.a.toml.tmp", d+"/a.toml"))
			},
			before: "a.toml: a 1", after: "a.toml: a 2",
		},
		{
			name:    "backup dance",
			prepare: func(t *testing.T, d string) { write(t, d+"/a.toml", "a 1\n") },
			change: func(t *testing.T, d string) {
				check(t, os.Rename(d+"/a.toml", d+"/a.toml~"))
				time.Sleep(50 * time.Millisecond)
				write(t, d+"/a.toml", "a 2\n")
			},
			before: "a.toml: a 1", after: "a.toml: a 2",
		},
		{
			name:    "older and of the same size",
			prepare: func(t *testing.T, d string) { write(t, d+"/a.toml", "a 1\n") },
			change: func(t *testing.T, d string) {
				write(t, d+"/.old", "a 2\n")
				old := time.Now().Add(-24 * time.Hour)
				check(t, os.Chtimes(d+"/.old", old, old))
				check(t, os.Rename(d+"/.old", d+"/a.toml"))
			},
			before: "a.toml: a 1", after: "a.toml: a 2",
		},
		{
			name: "symlink swapped",
			prepare: func(t *testing.T, d string) {
				write(t, d+"/../v1", "a 1\n")
				write(t, d+"/../v2", "a 2\n")
				check(t, os.Symlink("../v1", d+"/a.toml"))
			},
			change: func(t *testing.T, d string) {
				check(t, os.Symlink("../v2", d+"/.new"))
				check(t, os.Rename(d+"/.new", d+"/a.toml"))
				time.Sleep(50 * time.Millisecond)
				write(t, d+"/../v2", "a 3\n") // its new target is watched too
			},
			before: "a.toml: a 1", after: "a.toml: a 3",
		},
		{
			name: "target of a symlink written and replaced",
			prepare: func(t *testing.T, d string) {
				check(t, os.Mkdir(d+"/../far", 0o755))
				write(t, d+"/../far/x", "a 1\n")
				check(t, os.Symlink(d+"/../far/x", d+"/a.toml"))
			},
			change: func(t *testing.T, d string) {
				write(t, d+"/../far/x", "a 2\n")
				time.Sleep(50 * time.Millisecond)
				write(t, d+"/../far/y", "a 3\n")
				check(t, os.Rename(d+"/../far/y", d+"/../far/x"))
			},
			before: "a.toml: a 1", after: "a.toml: a 3",
		},
		{
			name: "directory of the target of a symlink replaced",
			prepare: func(t *testing.T, d string) {
				check(t, os.Mkdir(d+"/../far", 0o755))
				write(t, d+"/../far/x", "a 1\n")
				check(t, os.Symlink("../far/x", d+"/a.toml"))
			},
			change: func(t *testing.T, d string) {
				check(t, os.Rename(d+"/../far", d+"/../near"))
				check(t, os.Mkdir(d+"/../far", 0o755))
				write(t, d+"/../far/x", "a 2\n")
			},
			before: "a.toml: a 1", after: "a.toml: a 2",
		},
		{
			name: "symlink to a file in the same directory",
			prepare: func(t *testing.T, d string) {
				write(t, d+"/base", "a 1\n")
				check(t, os.Symlink("base", d+"/a.toml"))
			},
			change: func(t *testing.T, d string) { write(t, d+"/base", "a 2\n") },
			before: "a.toml: a 1", after: "a.toml: a 2",
		},
		{
			name: "symlink in the middle of a path",
			prepare: func(t *testing.T, d string) {
				for _, v := range []string{"1", "2"} {
					check(t, os.MkdirAll(d+"/../releases/"+v, 0o755))
					write(t, d+"/../releases/"+v+"/x", "a "+v+"\n")
				}
				check(t, os.Mkdir(d+"/../srv", 0o755))
				check(t, os.Symlink("../releases/1", d+"/../srv/current"))
				check(t, os.Symlink("../srv/current/x", d+"/a.toml"))
			},
			change: func(t *testing.T, d string) {
				check(t, os.Symlink("../releases/2", d+"/../srv/new"))
				check(t, os.Rename(d+"/../srv/new", d+"/../srv/current"))
			},
			before: "a.toml: a 1", after: "a.toml: a 2",
		},
		{
			name: "dangling symlink gets its target",
			prepare: func(t *testing.T, d string) {
				check(t, os.Symlink("../not/yet/x", d+"/a.toml"))
			},
			change: func(t *testing.T, d string) {
				check(t, os.Mkdir(d+"/../not", 0o755))
				time.Sleep(50 * time.Millisecond)
				check(t, os.Mkdir(d+"/../not/yet", 0o755))
				time.Sleep(50 * time.Millisecond)
				write(t, d+"/../not/yet/x", "a 1\n")
			},
			before: "", after: "a.toml: a 1",
		},
		{
			name: "ConfigMap",
			prepare: func(t *testing.T, d string) {
				configMap(t, d, "..1", map[string]string{"a.toml": "a 1\n", "b.toml": "b 1\n"})
				check(t, os.Symlink("..data/a.toml", d+"/a.toml"))
				check(t, os.Symlink("..data/b.toml", d+"/b.toml"))
			},
			change: func(t *testing.T, d string) {
				configMap(t, d, "..2", map[string]string{"a.toml": "a 2\n", "b.toml": "b 1\n", "c.toml": "c 1\n"})
				check(t, os.Symlink("..data/c.toml", d+"/c.toml"))
				check(t, os.RemoveAll(d+"/..1"))
				time.Sleep(50 * time.Millisecond)
				configMap(t, d, "..3", map[string]string{"a.toml": "a 3\n", "c.toml": "c 1\n"})
				check(t, os.Remove(d+"/b.toml"))
				check(t, os.RemoveAll(d+"/..2"))
			},
			before: "a.toml: a 1; b.toml: b 1", after: "a.toml: a 3; c.toml: c 1",
		},
		{
			name:    "directory removed and made again",
			prepare: func(t *testing.T, d string) { write(t, d+"/a.toml", "a 1\n") },
			change: func(t *testing.T, d string) {
				for _, text := range []string{"a 2\n", "a 3\n", "a 4\n"} {
					check(t, os.RemoveAll(d))
					check(t, os.Mkdir(d, 0o755))
					write(t, d+"/a.toml", text)
					time.Sleep(30 * time.Millisecond)
				}
				write(t, d+"/b.toml", "b 1\n")
			},
			before: "a.toml: a 1", after: "a.toml: a 4; b.toml: b 1",
		},
		{
			name:    "directory renamed away, another put in its place",
			prepare: func(t *testing.T, d string) { write(t, d+"/a.toml", "a 1\n") },
			change: func(t *testing.T, d string) {
				check(t, os.Mkdir(d+".new", 0o755))
				write(t, d+".new/a.toml", "a 2\n")
				check(t, os.Rename(d, d+".old"))
				check(t, os.Rename(d+".new", d))
				time.Sleep(50 * time.Millisecond)
				write(t, d+".old/a.toml", "a 8\n") // is not ours any more
				write(t, d+"/a.toml", "a 3\n")
			},
			before: "a.toml: a 1", after: "a.toml: a 3",
		},
		{
			name: "directory removed and made again while a process has it open",
			prepare: func(t *testing.T, d string) {
				write(t, d+"/a.toml", "a 1\n")
				open, err := os.Open(d) // so that the kernel does not report that it is removed
				check(t, err)
				t.Cleanup(func() { check(t, open.Close()) })
			},
			change: func(t *testing.T, d string) {
				check(t, os.RemoveAll(d))
				check(t, os.Mkdir(d, 0o755))
				write(t, d+"/a.toml", "a 2\n")
				time.Sleep(50 * time.Millisecond)
				write(t, d+"/a.toml", "a 3\n")
			},
			before: "a.toml: a 1", after: "a.toml: a 3",
		},
		{
			name:    "parent renamed, and another one made",
			prepare: func(t *testing.T, d string) { write(t, d+"/a.toml", "a 1\n") },
			change: func(t *testing.T, d string) {
				check(t, os.Rename(filepath.Dir(d), filepath.Dir(d)+".old")) // of which no event tells
				check(t, os.MkdirAll(d, 0o755))
				write(t, d+"/a.toml", "a 2\n")
				time.Sleep(50 * time.Millisecond)
				write(t, d+"/a.toml", "a 3\n")
			},
			before: "a.toml: a 1", after: "a.toml: a 3",
		},
		{
			name:    "directory exchanged with another one, three times",
			prepare: func(t *testing.T, d string) { write(t, d+"/a.toml", "a 1\n") },
			change: func(t *testing.T, d string) {
				check(t, os.Mkdir(d+".new", 0o755))
				write(t, d+".new/a.toml", "a 2\n")
				for range 3 {
					check(t, unix.Renameat2(unix.AT_FDCWD, d, unix.AT_FDCWD, d+".new", unix.RENAME_EXCHANGE))
					time.Sleep(30 * time.Millisecond)
				}
				write(t, d+".new/a.toml", "a 8\n") // is not ours any more
			},
			before: "a.toml: a 1", after: "a.toml: a 2",
		},
		{
			name:    "another directory renamed over the empty one",
			prepare: func(*testing.T, string) {},
			change: func(t *testing.T, d string) {
				check(t, os.Mkdir(d+".new", 0o755))
				write(t, d+".new/a.toml", "a 1\n")
				check(t, unix.Rename(d+".new", d)) // os.Rename refuses
				time.Sleep(50 * time.Millisecond)
				write(t, d+"/a.toml", "a 2\n")
			},
			before: "", after: "a.toml: a 2",
		},
		{
			name: "directory is a symlink that is swapped",
			prepare: func(t *testing.T, d string) {
				for _, v := range []string{"1", "2"} {
					check(t, os.MkdirAll(d+"/../real/"+v, 0o755))
					write(t, d+"/../real/"+v+"/a.toml", "a "+v+"\n")
				}
				check(t, os.Remove(d))
				check(t, os.Symlink("real/1", d))
			},
			change: func(t *testing.T, d string) {
				check(t, os.Symlink("real/2", d+".new"))
				check(t, os.Rename(d+".new", d))
				time.Sleep(50 * time.Millisecond)
				write(t, d+"/a.toml", "a 3\n")
			},
			before: "a.toml: a 1", after: "a.toml: a 3",
		},
		{
			name:    "directory missing at first, with its parent",
			prepare: func(t *testing.T, d string) { check(t, os.RemoveAll(filepath.Dir(d))) },
			change: func(t *testing.T, d string) {
				check(t, os.MkdirAll(d, 0o755))
				write(t, d+"/a.toml", "a 1\n")
				time.Sleep(50 * time.Millisecond)
				write(t, d+"/b.toml", "b 1\n")
			},
			before: "", after: "a.toml: a 1; b.toml: b 1",
		},
		{
			name:    "new, and removed",
			prepare: func(t *testing.T, d string) { write(t, d+"/a.toml", "a 1\n") },
			change: func(t *testing.T, d string) {
				write(t, d+"/b.json", "b 1\n")
				check(t, os.Remove(d+"/a.toml"))
			},
			before: "a.toml: a 1", after: "b.json: b 1",
		},
		{
			name:    "moved to another name",
			prepare: func(t *testing.T, d string) { write(t, d+"/a.toml", "a 1\n") },
			change:  func(t *testing.T, d string) { check(t, os.Rename(d+"/a.toml", d+"/b.toml")) },
			before:  "a.toml: a 1", after: "b.toml: a 1",
		},
		{
			name:    "made unreadable, then repaired",
			prepare: func(t *testing.T, d string) { write(t, d+"/a.toml", "a 1\n") },
			change: func(t *testing.T, d string) {
				check(t, os.Remove(d+"/a.toml"))
				check(t, syscall.Mkfifo(d+"/a.toml", 0o644))
				time.Sleep(400 * time.Millisecond)
				write(t, d+"/.new", "a 2\n")
				check(t, os.Rename(d+"/.new", d+"/a.toml"))
			},
			before: "a.toml: a 1", after: "a.toml: a 2",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			d := filepath.Join(t.TempDir(), "etc", "conf.d")
			check(t, os.MkdirAll(d, 0o755))
			tt.prepare(t, d)
			f := start(t, d)
			if _, err := os.Stat(d); err == nil {
				f.awaitSynced()
			}
			f.sink.await("at first", tt.before)
			tt.change(t, d)
			f.sink.await("after the change", tt.after)
			time.Sleep(2 * goneTime)
			f.sink.await("later", tt.after)
		})
	}
}

// No event tells that a directory above the parent was replaced. What finds it
// out must set the watches again: the old ones are on the old directories.
func TestReplacedGrandparentIsWatchedAgain(t *testing.T) {
	root := t.TempDir()
	d := root + "/etc/svcproxy/conf.d"
	check(t, os.MkdirAll(d, 0o755))
	write(t, d+"/a.toml", "a 1\n")
	f := start(t, d)
	f.sink.await("at first", "a.toml: a 1")

	check(t, os.Rename(root+"/etc", root+"/old"))
	check(t, os.MkdirAll(d, 0o755))
	write(t, d+"/a.toml", "a 2\n")
	f.src.Reload()
	f.sink.await("after Reload", "a.toml: a 2")
	write(t, d+"/a.toml", "a 3\n")
	f.sink.await("after an event", "a.toml: a 3")
	write(t, root+"/old/svcproxy/conf.d/b.toml", "b 1\n")
	time.Sleep(50 * time.Millisecond)
	f.sink.await("after a change of the old directory", "a.toml: a 3")
}

func (f *fixture) awaitSynced() {
	for !f.src.Status().Synced {
		time.Sleep(time.Millisecond)
	}
}

// configMap writes files as the kubelet does: into a new directory, to which
// the link ..data is then swapped.
func configMap(t *testing.T, d, version string, files map[string]string) {
	t.Helper()
	check(t, os.Mkdir(filepath.Join(d, version), 0o755))
	for name, text := range files {
		write(t, filepath.Join(d, version, name), text)
	}
	check(t, os.Symlink(version, d+"/..data_tmp"))
	check(t, os.Rename(d+"/..data_tmp", d+"/..data"))
}
