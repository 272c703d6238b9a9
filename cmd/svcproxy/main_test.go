package main

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/internal/fatal"
)

// run does what args say and returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return (&program{stdout: stdout, stderr: stderr}).run(ctx, args)
}

// A call is one run of the program with directories of its own.
func call(t *testing.T, dir string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs strings.Builder
	args = append(args, "--config-dir", filepath.Join(dir, "etc"), "--state-dir", filepath.Join(dir, "lib"), "--run-dir", filepath.Join(dir, "run"))
	code = run(t.Context(), args, &out, &errs)
	return code, out.String(), strings.ReplaceAll(errs.String(), dir+"/", "")
}

// etc makes directories with these files in the one of settings.
func etc(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	fatal.If(t, os.Mkdir(filepath.Join(dir, "etc"), 0o755))
	for name, text := range files {
		fatal.If(t, os.WriteFile(filepath.Join(dir, "etc", name), []byte(text), 0o644))
	}
	return dir
}

func TestExitCodes(t *testing.T) {
	const usage = "\nRun 'svcproxy --help' for usage.\n"
	broken := map[string]string{"svcproxy.toml": "masquerade = \"x\"\n"}
	const fault = "etc/svcproxy.toml:1:14: unknown masquerade mode \"x\"; want auto, all or never\n"
	const scheduler = "[[services]]\nname = \"a\"\nvips = [\"10.96.0.1\"]\nports = [{ port = 1 }]\nscheduler = \"rr\"\n"
	tests := []struct {
		name   string
		files  map[string]string
		args   []string
		code   int
		stderr string
	}{
		{"good", nil, []string{"check"}, 0, ""},
		{"good settings", nil, []string{"config"}, 0, ""},
		{"fault", broken, []string{"check"}, 1, fault},
		{"fault of config", broken, []string{"config"}, 1, fault},
		{"fault of init", broken, []string{"init"}, 1, fault},
		{"fault of run", broken, []string{"run"}, 1, fault},
		{"fault as JSON", broken, []string{"check", "--json"}, 1,
			`{"pos":{"file":"etc/svcproxy.toml","line":1,"col":14},"message":"unknown masquerade mode \"x\"","hint":"want auto, all or never"}` + "\n"},
		{"a flag sets it right", map[string]string{"svcproxy.toml": "mode = \"ipvs\"\n"}, []string{"config", "--mode", "auto"}, 0, ""},
		{"unknown command", nil, []string{"nonsense"}, 2, "svcproxy: unknown command \"nonsense\" for \"svcproxy\"" + usage},
		{"unknown flag", nil, []string{"check", "--foo"}, 2, "svcproxy: unknown flag: --foo" + usage},
		{"bad flag", nil, []string{"run", "--masquerade-bit", "32"}, 2,
			"svcproxy: invalid argument \"32\" for \"--masquerade-bit\" flag: masquerade_bit is 32; want 0 to 31" + usage},
		{"argument too many", nil, []string{"config", "x"}, 2, "svcproxy: unknown command \"x\" for \"svcproxy config\"" + usage},
		{"unknown output", nil, []string{"status", "-o", "x"}, 2, "svcproxy: unknown output \"x\"; want table, wide or json" + usage},
		{"bad destination", nil, []string{"trace", "any", "web:80"}, 2,
			"svcproxy: unknown destination \"web:80\"; want ADDRESS[:PORT][/PROTOCOL], [ADDRESS]:PORT for IPv6, or any" + usage},
		{"bad bound", nil, []string{"trace", "--count", "-1"}, 2, "svcproxy: --count and --for cannot be negative" + usage},
		{"no file", nil, []string{"check", "/nonexistent/x.toml"}, 3, "/nonexistent/x.toml: cannot be read: no such file or directory\n"},
		{"no file and a fault", broken, []string{"check", "/nonexistent/x.toml", "etc"}, 3, "/nonexistent/x.toml: cannot be read: no such file or directory\n" + fault},
		{"no file, as JSON", nil, []string{"check", "--json", "/nonexistent/x.toml"}, 3,
			`{"pos":{"file":"/nonexistent/x.toml"},"message":"cannot be read: no such file or directory"}` + "\n"},
		{"warnings only", map[string]string{"a.toml": "[[services]]\nname = \"a\"\nports = [{ port = 1 }]\n"}, []string{"check"}, 0,
			"etc/a.toml:1:1: warning: service \"a\" has no address and no node port; nothing can reach it\n"},
		{"mode that cannot do it", map[string]string{"a.toml": scheduler}, []string{"check", "--mode", "iptables"}, 1,
			"etc/a.toml:5:13: scheduler is for ipvs mode, and this is iptables mode; leave it out\n"},
		{"two faults as JSON", map[string]string{"a.toml": "a = 1\nb = 2\nservices = []\n"}, []string{"check", "--json"}, 1,
			`{"pos":{"file":"etc/a.toml","line":1,"col":1},"message":"unknown key \"a\"","hint":"want defaults or services"}` + "\n" +
				`{"pos":{"file":"etc/a.toml","line":2,"col":1},"message":"unknown key \"b\"","hint":"want defaults or services"}` + "\n"},
		{"no daemon", nil, []string{"status"}, 3,
			"svcproxy does not answer; is it running?: dial unix run/svcproxy.sock: connect: no such file or directory\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if err := mayAdminister(tt.args[0]); err != nil && (tt.args[0] == "run" || tt.args[0] == "cleanup") && tt.code == exitFailed {
				tt.stderr = err.Error() + "\n"
			}
			dir := etc(t, tt.files)
			t.Chdir(dir)
			code, _, stderr := call(t, dir, tt.args...)
			if code != tt.code || stderr != tt.stderr {
				t.Errorf("exit %d: %s\nwant %d: %s", code, stderr, tt.code, tt.stderr)
			}
		})
	}
}

// Check says what it has read, so that an empty directory does not pass for a good one.
func TestCheckSaysWhatItRead(t *testing.T) {
	const service = "[[services]]\nname = \"a\"\nports = [{ port = 1 }]\n"
	for want, args := range map[string][]string{
		"etc: no faults; service files: 1, services: 1, warnings: 1\n":        {"check", "etc"},
		"etc/a.toml: no faults; service files: 1, services: 1, warnings: 1\n": {"check", "etc/a.toml"},
		"etc/svcproxy.toml: no faults; settings, warnings: 0\n":               {"check", "etc/svcproxy.toml"},
		"": {"check", "--json", "etc"},
	} {
		dir := etc(t, map[string]string{"a.toml": service, "svcproxy.toml": "mode = \"iptables\"\n"})
		t.Chdir(dir)
		if code, out, stderr := call(t, dir, args...); code != 0 || out != want {
			t.Errorf("%q: exit %d, %s\nsaid %swant %s", args, code, stderr, out, want)
		}
	}
}

// Init goes by the settings that the daemon uses, where those of the file have faults.
func TestInitUsesLastGood(t *testing.T) {
	var flags configs.Flags
	dir := etc(t, map[string]string{"svcproxy.toml": "zone = 1\n"})
	var stderr strings.Builder
	p := &program{stderr: &stderr}
	p.dirs.config, p.dirs.state = filepath.Join(dir, "etc"), dir
	if _, err := p.settingsOrLastGood(&flags); err == nil {
		t.Error("no error, and nothing good")
	}
	fatal.If(t, os.WriteFile(filepath.Join(dir, "svcproxy.toml"), []byte("zone = \"good\"\n"), 0o644))
	if s, err := p.settingsOrLastGood(&flags); err != nil || s.Zone != "good" || !strings.Contains(stderr.String(), "using the last good settings") {
		t.Errorf("zone %q, %v, said %s", s.Zone, err, stderr.String())
	}
}

// What config prints, check finds good and config prints again.
func TestConfigIsASettingsFile(t *testing.T) {
	dir := etc(t, map[string]string{"svcproxy.toml": "zone = \"file\"\nmasquerade = \"all\"\n"})
	code, first, stderr := call(t, dir, "config", "--zone", "flag")
	if code != 0 || stderr != "" || !strings.Contains(first, "zone = \"flag\"\n") || !strings.Contains(first, "masquerade = \"all\"\n") {
		t.Fatalf("exit %d, %s\n%s", code, stderr, first)
	}
	dir = etc(t, map[string]string{"svcproxy.toml": first})
	if code, second, stderr := call(t, dir, "config"); code != 0 || second != first {
		t.Errorf("exit %d, %s\nprinted %s\nthen %s", code, stderr, first, second)
	}
}

func TestVersion(t *testing.T) {
	version = "v1.2.3"
	defer func() { version = "" }()
	if code, out, _ := call(t, t.TempDir(), "--version"); code != 0 || out != "svcproxy v1.2.3\n" {
		t.Errorf("--version: exit %d: %s", code, out)
	}
	code, out, _ := call(t, t.TempDir(), "version")
	if code != 0 || !strings.HasPrefix(out, "svcproxy v1.2.3, commit ") || !strings.Contains(out, ", go1.") {
		t.Errorf("exit %d: %s", code, out)
	}
}

// Run must have a flag for each key at the top of svcproxy.toml.
func TestRunHasFlags(t *testing.T) {
	_, out, _ := call(t, t.TempDir(), "run", "--help")
	for line := range strings.Lines(string(configs.Format(configs.Default()))) {
		key, _, ok := strings.Cut(line, " = ")
		if !ok {
			break // tables follow
		}
		if flag := "--" + strings.ReplaceAll(key, "_", "-") + " "; !strings.Contains(out, flag) {
			t.Errorf("svcproxy run has no %s", flag)
		}
	}
}
