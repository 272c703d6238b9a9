package file

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What is passed over is named, unless it is left behind by a program, and so is
// what others may write.
func TestCheckDir(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"web.toml", "db.json", "svcproxy.toml", "web.conf", "web.yaml", "web.TOML", "README",
		".hidden", "web.toml~", "web.toml.swp", "web.toml.bak", "web.toml.dpkg-old", "web.toml.rpmnew", "web.toml.orig", "bgp.secret", "open.toml"} {
		check(t, os.WriteFile(filepath.Join(dir, name), []byte("services = []\n"), 0o644))
	}
	check(t, os.Mkdir(filepath.Join(dir, "sub.toml"), 0o755))
	check(t, os.Chmod(filepath.Join(dir, "open.toml"), 0o666))
	var got []string
	for _, f := range CheckDir(dir, nil, false) {
		if !f.Warning {
			t.Errorf("%s is no warning", f)
		}
		got = append(got, fmt.Sprintf("%s %s", filepath.Base(f.Pos.File), f.Msg))
	}
	want := "README this file is not read; open.toml everybody may write this; sub.toml this directory is not read; " +
		"web.TOML this file is not read; web.conf this file is not read; web.yaml this file is not read"
	if all := strings.Join(got, "; "); all != want {
		t.Errorf("got  %s\nwant %s", all, want)
	}
	check(t, os.Chmod(dir, 0o777))
	if got := CheckDir(dir, nil, false); len(got) == 0 || got[0].Pos.File != dir {
		t.Errorf("a directory that everybody may write: %v", got)
	}
	if got := CheckDir(filepath.Join(dir, "none"), nil, false); got != nil {
		t.Errorf("a directory that does not exist: %v", got)
	}
	st := New(Options{Dir: dir}).Status()
	if len(st.Warnings) != 7 || !strings.Contains(st.Warnings[6], "web.yaml: this file is not read") {
		t.Errorf("status warns of %q", st.Warnings)
	}
}
