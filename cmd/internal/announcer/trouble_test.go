package announcer

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/internal/fatal"
)

// logged is a log that is read while it is written.
type logged struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

// take returns what was written since it was last called.
func (l *logged) take() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.text.Reset()
	return l.text.String()
}

// What goes on failing is logged once, and once more when it is over.
func TestTroubleIsLoggedOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "secret")
	fatal.If(t, os.WriteFile(path, []byte("s3cret"), 0o644))
	synctest.Test(t, func(t *testing.T) {
		w := &wire{}
		var out logged
		var works atomic.Bool
		b := bgpTo(configs.BGPPeer{Address: peerAddr, PasswordFile: path})
		_, ready, end := begin(t, w, b, func(c *Config) {
			c.Log = slog.New(slog.NewTextHandler(&out, nil))
			c.Open = func(b configs.BGP, p Peers) (Speaker, error) {
				s, err := w.open(b, p)
				if !works.Load() {
					s.(*speaker).crash <- errors.New("port 179 is taken")
				}
				return s, err
			}
		})
		expect := func(want ...string) {
			t.Helper()
			synctest.Wait()
			var got []string
			for line := range strings.Lines(out.take()) {
				_, line, _ = strings.Cut(line, "msg=")
				got = append(got, strings.TrimSpace(line))
			}
			if !slices.EqualFunc(got, want, strings.HasPrefix) {
				t.Errorf("logged\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
		}
		ready()
		time.Sleep(time.Hour)
		expect(`"cannot announce addresses to a BGP peer" err="`+path, `"no address is announced by BGP" err="no router has a password`)
		fatal.If(t, os.Chmod(path, 0o600))
		time.Sleep(time.Hour)
		expect(`"BGP peer re-enabled" peer=192.0.2.254`, `"no address is announced by BGP" err="BGP ended: port 179 is taken"`)
		works.Store(true)
		time.Sleep(time.Hour)
		expect(`"addresses are announced by BGP again" was="BGP ended: port 179 is taken"`)
		end()
	})
}
