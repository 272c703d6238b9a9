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
		foreign                bool
	}{
		{"the file", "/real/file", "/real/file", "/real/file can be changed by its owner, user 65534, who is not root", false},
		{"the file of a link", "/real/file", "/links/file", "/real/file can be changed by its owner, user 65534, who is not root", true},
		{"a link", "/links/file", "/links/file", "/links/file can be changed by its owner, user 65534, who is not root", true},
		{"a link on the way", "/links/dir", "/links/file", "/links/dir can be changed by its owner, user 65534, who is not root", true},
		{"a link above", "/links/dir", "/links/dir/file", "/links/dir can be changed by its owner, user 65534, who is not root", false},
		{"a directory", "/real", "/links/file", "/real can be changed by its owner, user 65534, who is not root", false},
		{"something else", "/links/dir", "/real/file", "", false},
	} {
		root := tree(t)
		try(t, os.Lchown(root+tt.what, other, 0))
		if got, err := Writer(root + tt.path); err != nil || strings.TrimPrefix(got, root) != tt.want {
			t.Errorf("%s: %q, %v; want %q", tt.name, got, err, tt.want)
		}
		if got := ForeignLink(root+tt.path, ownerOf(t, root+tt.path)); got != tt.foreign {
			t.Errorf("%s: ForeignLink = %v", tt.name, got)
		}
		if !ForeignLink(root+tt.path, 4242) {
			t.Errorf("%s: ForeignLink = false although the file has changed hands", tt.name)
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
