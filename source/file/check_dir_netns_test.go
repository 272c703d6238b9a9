//go:build netns

package file

import (
	"os"
	"path/filepath"
	"testing"
)

// Where others have shares, that they own service files is no reason to warn. The directory and the settings are root's.
func TestCheckDirOfOthers(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"web.toml", "svcproxy.toml"} {
		check(t, os.WriteFile(filepath.Join(dir, name), nil, 0o644))
		check(t, os.Chown(filepath.Join(dir, name), 61001, 0))
	}
	check(t, os.Chown(dir, 61001, 0))
	for shared, want := range map[bool]int{false: 3, true: 2} {
		if got := CheckDir(dir, nil, shared); len(got) != want {
			t.Errorf("shared: %v: %v, want %d", shared, got, want)
		}
	}
}
