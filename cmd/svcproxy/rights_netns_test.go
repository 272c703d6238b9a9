//go:build netns

package main

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"svcproxy.dev/svcproxy/internal/fatal"
)

// Check reads what a daemon reads with the rights of svcproxy.service, as root too,
// and with all that root has where the daemon that runs has it.
func TestCheckReadsAsDaemon(t *testing.T) {
	const service = "[[services]]\nname = \"a\"\nvips = [\"10.96.0.1\"]\nports = [{ port = 80 }]\nendpoints = []\n"
	dir := etc(t, map[string]string{"a.toml": service, "../b.toml": service})
	t.Chdir(dir)
	for _, path := range []string{"etc/a.toml", "b.toml"} {
		fatal.If(t, os.Chmod(path, 0o600))
		fatal.If(t, os.Chown(path, 65534, 65534))
	}
	const (
		refused = "etc/a.toml: cannot be read: permission denied; svcproxy.service reads what the modes of files and directories let root read: chown root, or chmod a+r\n"
		writer  = "etc/a.toml: warning: its owner may write this, who is not root; who can write it directs the traffic of this host\n"
		hidden  = "etc/a.toml: warning: its mode does not let root read this; svcproxy.service, which may not pass over modes, cannot read it: chown root, or chmod a+r\n"
	)
	wants := func(code int, stderr string, args ...string) {
		t.Helper()
		if got, text := process(t, dir, args...); got != code || text != stderr {
			t.Errorf("%q: exit %d: %s\nwant %d: %s", args, got, text, code, stderr)
		}
	}
	wants(3, refused+writer, "check")
	wants(3, refused, "check", "etc/a.toml")
	wants(0, "", "check", "b.toml")
	fatal.If(t, os.Mkdir("run", 0o755))
	l, err := new(net.ListenConfig).Listen(t.Context(), "unix", filepath.Join("run", "svcproxy.sock"))
	fatal.If(t, err)
	defer l.Close()
	wants(0, writer+hidden, "check")
}
