package sources

import (
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/source"
)

// A registry is a sink that remembers which services are in use.
type registry struct {
	mu       sync.Mutex
	services map[source.UnitID][]string
	accept   Accepter
}

// Apply implements source.Sink.
func (r *registry) Apply(ch source.Changes) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, u := range ch.Set {
		r.services[u.ID] = nil
		for _, s := range u.Services {
			r.services[u.ID] = append(r.services[u.ID], s.Key.Name)
		}
	}
	for _, id := range ch.Delete {
		delete(r.services, id)
	}
	go r.accept.Accepted(ch.Set)
}

// Synced implements source.Sink.
func (r *registry) Synced(string) {}

func (r *registry) names() (all []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, list := range r.services {
		all = append(all, list...)
	}
	slices.Sort(all)
	return all
}

// TestServicesOfWebServer goes from settings to services: an index on a web server, a restart while the server is gone, and its
// return.
func TestServicesOfWebServer(t *testing.T) {
	web, state := t.TempDir(), t.TempDir()
	publish := func(version int, names ...string) {
		var entries []string
		for _, name := range names {
			text := fmt.Sprintf("[[services]]\nname = %q\nvips = [\"10.96.0.%d\"]\nports = [{ port = 80 }]\nendpoints = [\"10.0.0.1\"]\n", name, name[0])
			fatal.If(t, os.WriteFile(filepath.Join(web, name+".toml"), []byte(text), 0o600))
			entries = append(entries, fmt.Sprintf(`{"url": "%s.toml", "sha256": "%x"}`, name, sha256.Sum256([]byte(text))))
		}
		index := fmt.Sprintf(`{"version": %d, "files": [%s]}`, version, strings.Join(entries, ","))
		fatal.If(t, os.WriteFile(filepath.Join(web, "index.json"), []byte(index), 0o600))
	}
	publish(1, "a", "b")
	var gone atomic.Bool
	files := http.FileServer(http.Dir(web))
	server := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		if gone.Load() {
			http.NotFound(out, r)
			return
		}
		files.ServeHTTP(out, r)
	}))
	defer server.Close()
	s := configs.Default()
	s.Sources = []string{"http"}
	s.HTTP.URLs, s.HTTP.Interval = []string{server.URL + "/index.json"}, 10*time.Millisecond
	start := func() (*registry, source.Source, func()) {
		src := Asked(s)[0].Open(Config{Settings: s, StateDir: state, Rules: Rules(s), Log: slog.New(slog.DiscardHandler)})
		r := &registry{services: map[source.UnitID][]string{}, accept: src.(Accepter)}
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error)
		go func() { done <- src.Run(ctx, r) }()
		return r, src, func() { cancel(); fatal.If(t, <-done) }
	}
	has := func(r *registry, want ...string) {
		t.Helper()
		pace.UntilOr(t, func() bool { return slices.Equal(r.names(), want) }, func() string { return fmt.Sprintf("got %q, want %q", r.names(), want) })
	}
	r, src, stop := start()
	has(r, "a", "b")
	publish(2, "a", "c")
	has(r, "a", "c")
	if c := src.Status().Connection; c == nil || !c.Connected || c.Server != server.URL+"/index.json" {
		t.Errorf("connection %+v", c)
	}
	pace.Until(t, "copies in the state directory", func() bool {
		copies, _ := filepath.Glob(filepath.Join(state, "http", "*", "*"))
		return len(copies) >= 2
	})
	stop()

	gone.Store(true)
	begin := time.Now()
	r, src, stop = start()
	has(r, "a", "c")
	t.Logf("last accepted services after %v without the server", time.Since(begin).Round(time.Millisecond))
	pace.Until(t, "why", func() bool { return strings.Contains(src.Status().Connection.Error, "404 Not Found") })
	gone.Store(false)
	publish(3, "d")
	has(r, "d")
	publish(4)
	pace.Until(t, "the empty index is held", func() bool { return src.(Holder).Held() == 1 })
	has(r, "d")
	stop()
}
