package read

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/internal/fatal"
)

const withProgram = "[[services]]\nname = \"a\"\nvips = [\"10.96.0.1\"]\nports = [{ port = 80 }]\nendpoints = [\"10.1.1.1\"]\n" +
	"health_check = { type = \"exec\", command = [\"/bin/true\"] }\n"

const asksNothing = "DIR/a.toml:6:43: svcproxy runs no program that this file names: "

// A file that others can change names a program: that would run as root.
func TestProgramsOfOthers(t *testing.T) {
	guarding := Rules{GuardPrograms: true}
	for _, tt := range []struct {
		name        string
		file, ofDir os.FileMode
		want        string
	}{
		{"nobody else", 0o644, 0o755, ""},
		{"all", 0o666, 0o755, asksNothing + "DIR/a.toml can be changed by everybody"},
		{"all, the directory", 0o644, 0o777, asksNothing + "DIR can be changed by everybody"},
		{"all, but each its own", 0o644, 0o777 | os.ModeSticky, ""},
	} {
		for what, text := range map[string]string{
			"alone":       withProgram,
			"in chunks":   withProgram + strings.ReplaceAll(strings.ReplaceAll(withProgram, `"a"`, `"b"`), "10.96.0.1", "10.96.0.2"),
			"by defaults": "[defaults.health_check]\ntype = \"exec\"\ncommand = [\"/bin/true\"]\n" + strings.Split(withProgram, "health")[0],
		} {
			dir := aDir(t)
			write(t, dir+"/a.toml", text)
			fatal.If(t, os.Chmod(dir+"/a.toml", tt.file))
			fatal.If(t, os.Chmod(dir, tt.ofDir))
			f := guarding.ReadFile(dir + "/a.toml")
			want, got := tt.want, ""
			if what == "by defaults" {
				want = strings.Replace(want, ":6:43:", ":3:11:", 1)
			}
			if len(f.Faults) > 0 {
				got, _, _ = strings.Cut(strings.ReplaceAll(f.Faults[0].String(), dir, "DIR"), ";")
			}
			if got != want || (len(f.Services) == 0) != (want != "") {
				t.Errorf("%s, %s: %q and %d services; want %q", tt.name, what, got, len(f.Services), want)
			}
			if f := (Rules{}).ReadFile(dir + "/a.toml"); len(f.Faults) > 0 {
				t.Errorf("%s, %s, where that does not matter: %v", tt.name, what, f.Faults)
			}
		}
	}
}

// aDir returns a directory by its real path.
func aDir(t *testing.T) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	fatal.If(t, err)
	return dir
}

// What check says of a program that is not run, or is not there.
func TestWarnsOfPrograms(t *testing.T) {
	dir := aDir(t)
	write(t, dir+"/program", "")
	fatal.If(t, os.Chmod(dir+"/program", 0o777))
	write(t, dir+"/a.toml", strings.Replace(withProgram, "/bin/true", dir+"/program", 1))
	const cannot = ":6:43: warning: svcproxy cannot run this program on this host: "
	for _, want := range []string{
		dir + "/program can be changed by everybody; endpoints stay as they are",
		`"` + dir + `/program": no such file or directory; endpoints stay as they are`,
	} {
		f := Rules{GuardPrograms: true}.ReadFile(dir + "/a.toml")
		if len(f.Faults) != 1 || f.Faults[0].String() != dir+"/a.toml"+cannot+want || len(f.Services) != 1 {
			t.Errorf("faults: %v; want %s", f.Faults, want)
		}
		_ = os.Remove(dir + "/program")
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	fatal.If(t, os.WriteFile(path, []byte(text), 0o600))
}
