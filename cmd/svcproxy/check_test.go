package main

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/cmd/internal/control"
	"svcproxy.dev/svcproxy/cmd/internal/modes"
	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/source"
)

// terminal returns both ends of a new terminal: what is written to tty comes out
// of master.
func terminal(t *testing.T) (master, tty *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	fatal.If(t, err)
	t.Cleanup(func() { master.Close() })
	fatal.If(t, unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	fatal.If(t, err)
	tty, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	fatal.If(t, err)
	t.Cleanup(func() { tty.Close() })
	return master, tty
}

const misspelt = "[[services]]\nname = \"a\"\n\tvip = [\"10.96.0.1\"]\nports = [{ port = 80, protocol = \"tpc\" }]\n"

// On a terminal each fault is followed by the line that it is about.
func TestCheckOnTerminal(t *testing.T) {
	want := strings.ReplaceAll(`etc/a.toml:3:2: unknown key "vip"; did you mean "vips"?
            vip = ["10.96.0.1"]
            ^
etc/a.toml:4:34: unknown protocol "tpc"; want tcp, udp or sctp; did you mean "tcp"?
    ports = [{ port = 80, protocol = "tpc" }]
                                     ^
`, "\n", "\r\n")
	dir := etc(t, map[string]string{"a.toml": misspelt})
	t.Chdir(dir)
	master, tty := terminal(t)
	if code := run(t.Context(), []string{"check", "--config-dir", "etc"}, tty, tty); code != 1 {
		t.Errorf("exit %d", code)
	}
	got := make([]byte, len(want))
	if _, err := io.ReadFull(master, got); err != nil || string(got) != want {
		t.Errorf("%v\n%q\nwant\n%q", err, got, want)
	}
}

// What a program asked for is for a program, on a terminal too.
func TestCheckJSONOnTerminal(t *testing.T) {
	dir := etc(t, map[string]string{"a.toml": "services = 1\n"})
	t.Chdir(dir)
	master, tty := terminal(t)
	if code := run(t.Context(), []string{"check", "--json", "--config-dir", "etc"}, tty, tty); code != 1 {
		t.Errorf("exit %d", code)
	}
	fmt.Fprintln(tty, "end")
	want := `{"pos":{"file":"etc/a.toml","line":1,"col":12},"message":"services is 1, a number","hint":"want a list"}` + "\r\nend\r\n"
	got := make([]byte, len(want))
	if _, err := io.ReadFull(master, got); err != nil || string(got) != want {
		t.Errorf("%v\n%q\nwant\n%q", err, got, want)
	}
}

// Elsewhere, and with --json, there is one line for each.
func TestCheckStandardInput(t *testing.T) {
	dir := etc(t, map[string]string{"a.toml": strings.Replace(misspelt, "vip ", "vips ", 1)})
	for name, text := range map[string]string{"TOML": misspelt, "JSON": `{"services": [{"name": "a", "vip": [], "ports": [{"port": 80, "protocol": "tpc"}]}]}`} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(dir, "stdin")
			fatal.If(t, os.WriteFile(path, []byte(text), 0o600))
			f, err := os.Open(path)
			fatal.If(t, err)
			defer f.Close()
			defer func(was *os.File) { os.Stdin = was }(os.Stdin)
			os.Stdin = f
			code, _, stderr := call(t, dir, "check", "-")
			if code != 1 || strings.Count(stderr, "<stdin>:") != 2 || strings.Count(stderr, "\n") != 2 {
				t.Errorf("exit %d:\n%s", code, stderr)
			}
		})
	}
}

// With mode = "auto" check refuses what the daemon that runs refuses, and only warns where none says its mode.
func TestCheckInModeOfDaemon(t *testing.T) {
	var without []string // modes
	for _, m := range modes.All {
		if !m.Scheduler {
			without = append(without, m.Name)
		}
	}
	warns := "etc/a.toml:6:13: warning: mode is \"auto\", and only ipvs mode accepts scheduler; write mode = \"ipvs\" in svcproxy.toml, or leave the key out: " + source.Either(without) + " mode refuses the file\n"
	const refuses = "etc/a.toml:6:13: scheduler is for ipvs mode, and this is nftables mode; leave it out\n"
	service := "[[services]]\nname = \"a\"\nvips = [\"10.96.0.1\"]\nports = [{ port = 1 }]\nendpoints = [\"192.0.2.1\"]\nscheduler = \"rr\"\n"
	for _, tt := range []struct {
		name, settings string
		daemon         func(t *testing.T, dir string)
		code           int
		want           string
	}{
		{"no daemon", "", nil, 0, warns},
		{"nftables", "", serveMode("nftables", "etc"), 1, refuses},
		{"ipvs", "", serveMode("ipvs", "etc"), 0, ""},
		{"a mode that is set", "mode = \"ipvs\"\n", serveMode("nftables", "etc"), 0, ""},
		{"a daemon of another directory", "", serveMode("nftables", "other"), 0, warns},
		{"a daemon that does not answer", "", serveNothing, 0, warns},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := etc(t, map[string]string{"a.toml": service, "svcproxy.toml": tt.settings + "http_address = \"\"\n"})
			if tt.daemon != nil {
				tt.daemon(t, dir)
			}
			for _, args := range [][]string{{"check"}, {"check", filepath.Join(dir, "etc", "a.toml")}} {
				if code, _, stderr := call(t, dir, args...); code != tt.code || stderr != tt.want {
					t.Errorf("%q: exit code %d, want %d\n got %s\nwant %s", args, code, tt.code, stderr, tt.want)
				}
			}
		})
	}
}

// serveMode answers as a daemon in a mode would that reads a directory.
func serveMode(mode, configDir string) func(t *testing.T, dir string) {
	return func(t *testing.T, dir string) {
		r := new(control.Routes)
		control.Get(r, "/v1/summary", func(context.Context, url.Values) (control.Summary, error) {
			return control.Summary{Daemon: control.Daemon{Settings: control.Settings{Mode: mode, ConfigDir: filepath.Join(dir, configDir)}}}, nil
		})
		serveRoutes(t, dir, r)
	}
}

// serveNothing takes connections as a daemon that hangs does.
func serveNothing(t *testing.T, dir string) {
	r := new(control.Routes)
	control.Get(r, "/v1/summary", func(ctx context.Context, _ url.Values) (control.Summary, error) {
		<-ctx.Done()
		return control.Summary{}, ctx.Err()
	})
	serveRoutes(t, dir, r)
}
