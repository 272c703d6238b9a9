//go:build netns

package file

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// What is written under another name, and what is mounted, comes without an event
// for the directory. Everything that changes is found all the same.
func TestWithoutEvents(t *testing.T) {
	root := os.Getenv(powerDir)
	if root == "" {
		inMountNamespace(t, "TestWithoutEvents")
		return
	}
	d := root + "/conf.d"
	check(t, os.Mkdir(d, 0o755))
	check(t, os.Mkdir(root+"/other", 0o755))
	write(t, root+"/linked", "l 1\n")
	check(t, os.Link(root+"/linked", d+"/linked.toml"))
	write(t, d+"/over.toml", "o 1\n")
	write(t, root+"/mounted", "o 2\n")
	write(t, root+"/other/a.toml", "a 1\n")

	f := start(t, d)
	f.sink.await("at first", "linked.toml: l 1; over.toml: o 1")
	write(t, root+"/linked", "l 2\n")
	f.sink.await("written under another name", "linked.toml: l 2; over.toml: o 1")
	check(t, unix.Mount(root+"/mounted", d+"/over.toml", "", unix.MS_BIND, ""))
	t.Cleanup(func() { _ = unix.Unmount(d+"/over.toml", unix.MNT_DETACH) })
	f.sink.await("a file mounted over", "linked.toml: l 2; over.toml: o 2")
	write(t, root+"/mounted", "o 3\n")
	f.sink.await("written where it is mounted from", "linked.toml: l 2; over.toml: o 3")
	check(t, unix.Mount(root+"/other", d, "", unix.MS_BIND, ""))
	t.Cleanup(func() { _ = unix.Unmount(d, unix.MNT_DETACH) })
	f.sink.await("a directory mounted over", "a.toml: a 1")
	check(t, unix.Unmount(d, 0))
	f.sink.await("unmounted", "linked.toml: l 2; over.toml: o 3")
	check(t, unix.Unmount(d+"/over.toml", 0))
	f.sink.await("the file unmounted", "linked.toml: l 2; over.toml: o 1")
}
