package announcer

import (
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/internal/fatal"
)

// A password file that cannot be used for a while costs no session: the password of before stays until there is another one,
// which needs no reload.
func TestUnusablePasswordFileKeepsThePreviousPassword(t *testing.T) {
	path := filepath.Join(t.TempDir(), "secret")
	write := func(text string) {
		fatal.If(t, os.WriteFile(path, []byte(text), 0o600))
	}
	write("s3cret")
	synctest.Test(t, func(t *testing.T) {
		w := &wire{}
		var out logged
		b := bgpTo(configs.BGPPeer{Address: peerAddr, PasswordFile: path}, configs.BGPPeer{Address: netip.MustParseAddr("192.0.2.253")})
		a, ready, end := begin(t, w, b, func(c *Config) { c.Log = slog.New(slog.NewTextHandler(&out, nil)) })
		notice := func(want string) {
			t.Helper()
			synctest.Wait()
			if s := a.Sessions()[0]; !s.Up() || !strings.Contains(s.Why(), want) || (want == "") != (s.Why() == "") {
				t.Errorf("session %+v; want the notice %q", s, want)
			}
		}
		ready()
		w.expect(t, "open 64512 192.0.2.1 map[192.0.2.253: 192.0.2.254:s3cret]", "routes ")
		notice("")

		write("")
		a.Reload()
		w.expect(t)
		notice("does not hold one line")
		write("s3cret")
		time.Sleep(retry)
		w.expect(t)
		notice("")

		fatal.If(t, os.Remove(path))
		b.Communities = []string{"64512:1"}
		a.Use(b)
		w.expect(t, "peers map[192.0.2.253: 192.0.2.254:s3cret] [64512:1]")
		time.Sleep(time.Hour)
		notice("no such file")
		b.GracefulRestart = time.Minute
		a.Use(b)
		w.expect(t, "stop graceful=true", "open 64512 192.0.2.1 map[192.0.2.253: 192.0.2.254:s3cret]", "routes ")
		write("other")
		time.Sleep(retry)
		w.expect(t, "peers map[192.0.2.253: 192.0.2.254:other] [64512:1]")
		notice("")
		end()
		text := out.take()
		for _, line := range []string{"using the previous one", "can be read again"} {
			if n := strings.Count(text, line); n != 2 {
				t.Errorf("%d times in the log, want twice: %s\n%s", n, line, text)
			}
		}
	})
}

// The password of another file is no help: such a router is left out, until its own can be read.
func TestPasswordOfAnotherFile(t *testing.T) {
	dir := t.TempDir()
	first, second := filepath.Join(dir, "first"), filepath.Join(dir, "second")
	fatal.If(t, os.WriteFile(first, []byte("s3cret"), 0o600))
	synctest.Test(t, func(t *testing.T) {
		w := &wire{}
		other := configs.BGPPeer{Address: netip.MustParseAddr("192.0.2.253")}
		a, ready, _ := begin(t, w, bgpTo(configs.BGPPeer{Address: peerAddr, PasswordFile: first}, other))
		ready()
		w.expect(t, "open 64512 192.0.2.1 map[192.0.2.253: 192.0.2.254:s3cret]", "routes ")
		a.Use(bgpTo(configs.BGPPeer{Address: peerAddr, PasswordFile: second}, other))
		w.expect(t, "peers map[192.0.2.253:] []")
		if s := a.Sessions()[0]; s.Up() || !strings.Contains(s.LastError, "no such file") {
			t.Errorf("session %+v", s)
		}
		fatal.If(t, os.Rename(first, second))
		time.Sleep(retry)
		w.expect(t, "peers map[192.0.2.253: 192.0.2.254:s3cret] []")
	})
}
