//go:build netns

package trust

import (
	"os"
	"strings"
	"testing"
)

// What another user owns, the user can change, whatever its mode. Only root can give files to others.
func TestOwnersCanChangeTheirFiles(t *testing.T) {
	const other = 65534
	for _, tt := range []struct {
		name, what, path, want string
		links                  Links
	}{
		{"the file", "/real/file", "/real/file", "/real/file can be changed by its owner, user 65534, who is not root", OwnLinks},
		{"the file of a link", "/real/file", "/links/file", "/real/file can be changed by its owner, user 65534, who is not root", OwnLinks},
		{"a link", "/links/file", "/links/file", "/links/file can be changed by its owner, user 65534, who is not root", RootLinks},
		{"a link on the way", "/links/dir", "/links/file", "/links/dir can be changed by its owner, user 65534, who is not root", RootLinks},
		{"a link above", "/links/dir", "/links/dir/file", "/links/dir can be changed by its owner, user 65534, who is not root", OwnLinks},
		{"a directory", "/real", "/links/file", "/real can be changed by its owner, user 65534, who is not root", OwnLinks},
		{"something else", "/links/dir", "/real/file", "", OwnLinks},
	} {
		root := tree(t)
		try(t, os.Lchown(root+tt.what, other, 0))
		if got, err := Writer(root + tt.path); err != nil || strings.TrimPrefix(got, root) != tt.want {
			t.Errorf("%s: %q, %v; want %q", tt.name, got, err, tt.want)
		}
		if got := LinksTo(root+tt.path, ownerOf(t, root+tt.path)); got != tt.links {
			t.Errorf("%s: LinksTo = %v, want %v", tt.name, got, tt.links)
		}
		if got := LinksTo(root+tt.path, 4242); got != ForeignLinks {
			t.Errorf("%s: LinksTo = %v although the file has changed hands", tt.name, got)
		}
	}
	root := tree(t)
	try(t, os.Lchown(root+"/real/file", 0, other))
	try(t, os.Chmod(root+"/real/file", 0o664))
	if got, _ := Writer(root + "/real/file"); !strings.HasSuffix(got, "its group 65534, which is not that of root") {
		t.Errorf("a group: %q", got)
	}
}

func ownerOf(t *testing.T, path string) uint32 {
	t.Helper()
	info, err := os.Stat(path)
	try(t, err)
	return owner(info)
}

// In a directory that others can change, a link shows who put a file there.
func TestLinksOfOthers(t *testing.T) {
	const team, other = 65533, 65534
	for _, tt := range []struct {
		name       string
		link, file int         // owners
		owner      int         // of the directory of the link
		mode       os.FileMode // of that
		want       Links
	}{
		{"of the team, anywhere", team, team, team, 0o777, OwnLinks},
		{"of root, anywhere", 0, team, other, 0o777, RootLinks},
		{"of another, where root alone writes", other, team, 0, 0o755, RootLinks},
		{"of another, where a group writes", other, team, 0, 0o775, ForeignLinks},
		{"of another, in a sticky directory", other, team, 0, 0o777 | os.ModeSticky, ForeignLinks},
		{"of another, in a directory of another", other, team, other, 0o755, ForeignLinks},
		{"of the team to a file of root", team, 0, team, 0o755, ForeignLinks},
	} {
		root := tree(t)
		try(t, os.Lchown(root+"/links/file", tt.link, 0))
		try(t, os.Lchown(root+"/real/file", tt.file, 0))
		try(t, os.Lchown(root+"/links/dir", tt.file, 0))
		try(t, os.Chown(root+"/links", tt.owner, 0))
		try(t, os.Chmod(root+"/links", tt.mode))
		if got := LinksTo(root+"/links/file", uint32(tt.file)); got != tt.want {
			t.Errorf("%s: LinksTo = %v, want %v", tt.name, got, tt.want)
		}
	}
}

// A link of root is as good as one of the owner of the file, where nobody else can put a file at its end.
func TestLinksOfRoot(t *testing.T) {
	const team, other = 65533, 65534
	for _, tt := range []struct {
		name string
		dir  int // who owns the directory of the file
		mode os.FileMode
		file int // who owns the file
		top  int // who owns the directory above
		want Links
	}{
		{"a file of the team", team, 0o755, team, 0, OwnLinks},
		{"in a directory of root", 0, 0o755, team, 0, OwnLinks},
		{"a file of another, which the team put there", team, 0o755, other, 0, RootLinks},
		{"where a group writes", team, 0o775, team, 0, RootLinks},
		{"in a sticky directory", 0, 0o777 | os.ModeSticky, team, 0, RootLinks},
		{"below a directory of another", team, 0o755, team, other, RootLinks},
	} {
		root := tree(t)
		try(t, os.Mkdir(root+"/real/team", 0o755))
		try(t, os.WriteFile(root+"/real/team/file", nil, 0o644))
		try(t, os.Symlink("../real/team/file", root+"/links/team"))
		try(t, os.Chown(root+"/real/team/file", tt.file, 0))
		try(t, os.Chown(root+"/real/team", tt.dir, 0))
		try(t, os.Chmod(root+"/real/team", tt.mode))
		try(t, os.Chown(root+"/real", tt.top, 0))
		if got := LinksTo(root+"/links/team", uint32(tt.file)); got != tt.want {
			t.Errorf("%s: LinksTo = %v, want %v", tt.name, got, tt.want)
		}
	}
}
