package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/source/keep"
)

// Without a daemon history reads the state directory; the others need one.
func TestVersionsWithoutADaemon(t *testing.T) {
	const away = "svcproxy does not answer; is it running?: dial unix run/svcproxy.sock: connect: no such file or directory\n"
	const usage = "\nRun 'svcproxy --help' for usage.\n"
	dir := etc(t, nil)
	t.Chdir(dir)
	history := filepath.Join(dir, "lib", "history")
	err := os.MkdirAll(history, 0o700)
	if err == nil {
		// Its line as svcproxy writes it, and the copy that is named by its checksum.
		err = os.WriteFile(filepath.Join(history, "index"), []byte(`02e3c262 {"number":7,"file":"web.toml","sum":"`+strings.Repeat("ab", 32)+`","at":"2026-11-22T10:00:00Z","uid":0,"services":3,"size":5,"added":3,"removed":0,"changed":0}`+"\n"), 0o600)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(history, "web.abababababab.toml"), nil, 0o600)
	}
	fatal.If(t, err)
	tests := []struct {
		args           []string
		code           int
		stdout, stderr string
	}{
		{[]string{"history"}, 0, "7        web.toml", ""},
		{[]string{"history", "/etc/svcproxy/web.toml"}, 0, "7        web.toml", ""},
		{[]string{"history", "api.toml"}, 0, "no version of a service file is kept\n", ""},
		{[]string{"history", "--json"}, 0, `"number":7`, ""},
		{[]string{"rollback", "7"}, 3, "", away},
		{[]string{"confirm"}, 3, "", away},
		{[]string{"apply", "--timeout", "1m"}, 3, "", away},
		{[]string{"rollback", "web.toml"}, 2, "", "svcproxy: unknown version \"web.toml\"; want a number as svcproxy history shows it" + usage},
		{[]string{"apply", "--timeout", "1ms"}, 2, "", "svcproxy: timeout 1ms; want 1s to 24h0m0s" + usage},
	}
	for _, tt := range tests {
		code, stdout, stderr := call(t, dir, tt.args...)
		if code != tt.code || stderr != tt.stderr || !strings.Contains(stdout, tt.stdout) {
			t.Errorf("%q: exit %d\n%s%s\nwant %d\n%s%s", tt.args, code, stdout, stderr, tt.code, tt.stdout, tt.stderr)
		}
	}
	fatal.If(t, os.WriteFile(filepath.Join(history, "index"), nil, 0o600))
	if list, err := keep.Histories(filepath.Join(dir, "lib"), ""); err != nil || len(list) != 0 {
		t.Errorf("an empty index: %v, %v", list, err)
	}
}
