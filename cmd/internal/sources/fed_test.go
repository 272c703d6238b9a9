package sources

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/proxier/claims"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/file"
	"svcproxy.dev/svcproxy/source/keep"
	"svcproxy.dev/svcproxy/source/remote"
)

// A texts is a remote.Fetcher that gives these sets.
type texts chan remote.Set

func (texts) Server() string { return "https://h/" }

// Run implements remote.Fetcher.
func (c texts) Run(ctx context.Context, give func(remote.Set), report func(error)) error {
	for {
		select {
		case set := <-c:
			if give(set); set.Version == "last" {
				report(errors.New("connection refused"))
			} else {
				report(nil)
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// A claiming sink decides on claims as a Loop does.
type claiming struct {
	mu      sync.Mutex
	tracker *claims.Tracker
	sources []source.Source
}

func (c *claiming) Synced(string) {}

// Apply implements source.Sink.
func (c *claiming) Apply(ch source.Changes) {
	c.mu.Lock()
	c.tracker.Apply(ch)
	units := c.tracker.Accepted()
	c.mu.Unlock()
	Each(c.sources, func(s Accepter) { s.Accepted(units) })
}

// said returns the states and faults of the files of all sources, as text.
func (c *claiming) said() string {
	c.mu.Lock()
	refusals := c.tracker.Refusals()
	c.mu.Unlock()
	var lines []string
	for _, s := range c.sources {
		st := AsUsed(s.Status(), refusals)
		for _, f := range slices.Concat(st.Files, st.Objects) {
			line := fmt.Sprintf("%s is %s with %d services", f.Path, f.State, f.Services)
			for _, fault := range f.Faults {
				line += ": " + fault.String()
			}
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "\n")
}

// If a file and a text of a server make the same claim, the file wins. The fault of the text names the file. Once the file is
// gone, the text is used.
func TestFilesWinOverTextsOfServers(t *testing.T) {
	dir, state, from := t.TempDir(), t.TempDir(), make(texts)
	config := func() Config {
		s := configs.Default()
		return Config{Settings: s, ConfigDir: dir, StateDir: state, Several: true, Log: slog.New(slog.DiscardHandler)}
	}
	service := func(name string) []byte {
		return []byte("[[services]]\nname = '" + name + "'\nvips = ['10.96.0.10']\nports = [{ port = 80 }]\nendpoints = ['192.0.2.1']\n")
	}
	url, path := "https://h/web.toml", filepath.Join(dir, "a.toml")
	sink := &claiming{tracker: claims.NewTracker(nil, file.Name, "http"), sources: []source.Source{openFiles(config()), openFed(config(), "http", from)}}
	ctx, cancel := context.WithCancel(t.Context())
	var ended sync.WaitGroup
	defer ended.Wait()
	defer cancel()
	for _, s := range sink.sources {
		ended.Go(func() {
			if err := s.Run(ctx, sink); err != nil {
				t.Error(err)
			}
		})
	}
	await := func(when, want string) {
		t.Helper()
		pace.UntilOr(t, func() bool { return sink.said() == want }, func() string {
			return fmt.Sprintf("%s:\n got: %s\nwant: %s", when, sink.said(), want)
		})
	}
	from <- remote.Set{Texts: []remote.Text{{Name: url, Data: service("web")}}}
	await("of the server alone", url+" is accepted with 1 services")
	fatal.If(t, os.WriteFile(path, service("a"), 0o600))
	taken := `service "default/web": 10.96.0.10:80/tcp is taken by "default/a" (` + path + ":3:9)"
	await("of a file too", path+" is accepted with 1 services\n"+url+" is refused with 0 services: "+url+":3:9: "+taken)
	fatal.If(t, os.Remove(path))
	await("without the file", url+" is accepted with 1 services")

	from <- remote.Set{Version: "last", Texts: []remote.Text{{Name: url, Data: service("web")}, {Name: "https://h/x.toml", Data: []byte("x")}}}
	await("with a text at fault", url+" is accepted with 1 services\nhttps://h/x.toml is refused with 0 services: https://h/x.toml:1:1: "+
		"unexpected EOF; expected key separator '='")
	st := sink.sources[1].Status()
	if c := st.Connection; st.Source != "http" || c == nil || c.Server != "https://h/" || c.Connected || c.Error != "connection refused" || time.Since(c.Since) > time.Minute {
		t.Errorf("status %+v, connection %+v", st, st.Connection)
	}
	list, err := keep.Histories(filepath.Join(state, "http"), url)
	if err != nil || len(list) == 0 {
		t.Errorf("history %v, %v", list, err)
	}
}
