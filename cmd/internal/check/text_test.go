package check_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/source/keep"
	"svcproxy.dev/svcproxy/source/read"
)

// Of a URL the text that was last accepted is checked, by the shares of now.
func TestTextOfServer(t *testing.T) {
	const url = "https://config.example.net/svc/web.toml"
	dir, state := t.TempDir(), t.TempDir()
	st := keep.New(keep.SourceDir(state, "http"), slog.New(slog.DiscardHandler))
	st.Load()
	text := []byte(service("a", "10.96.0.1") + "announce = [\"bgp\"]\n")
	st.Put(map[string]keep.Entry{url: {Record: keep.Record{Sum: read.IDOf(text, nil), At: time.Now()}, Version: &read.Version{ID: read.IDOf(text, nil), Data: text, Size: len(text)}}})
	ctx, cancel := context.WithCancel(t.Context())
	var ended sync.WaitGroup
	ended.Go(func() { st.Run(ctx) })
	fatal.If(t, st.Flush(ctx))
	cancel()
	ended.Wait()
	for _, tt := range []struct{ url, settings, want string }{
		{url, "", "from a server, and svcproxy.toml has no [[owners]]"},
		{url, "[[owners]]\nsources = ['https://config.example.net/svc/']\naddresses = ['10.96.0.0/24']\nnamespaces = ['default']\nallow = ['announce']\n", ""},
		{url, "[[owners]]\nsources = ['https://config.example.net/svc/']\naddresses = ['10.97.0.0/24']\nnamespaces = ['default']\nallow = ['announce']\n", url + ":3:9: 10.96.0.1 is outside of addresses"},
		{"https://config.example.net/svc/other.toml", "", "cannot be read: no version of"},
	} {
		settings := "sources = ['file', 'http']\n[http]\nurls = ['https://config.example.net/svc/index.json']\n" + tt.settings
		fatal.If(t, os.WriteFile(filepath.Join(dir, read.SettingsName), []byte(settings), 0o600))
		c := checker(dir, "")
		c.StateDir = state
		r := c.Path(tt.url)
		got := ""
		for _, f := range r.Faults {
			if !f.Warning {
				got += f.String()
			}
		}
		if got == "" != (tt.want == "") || !strings.Contains(got, tt.want) {
			t.Errorf("%s with %q: %s; want %q", tt.url, tt.settings, got, tt.want)
		}
	}
}
