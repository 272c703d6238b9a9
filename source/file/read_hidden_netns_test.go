//go:build netns

package file_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/internal/logtest"
	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/source/file"
	"svcproxy.dev/svcproxy/source/read"
)

// Faults of a text do not quote it where a link to the file has another owner than the file. Only root can give it one.
func TestForeignLinkIsNotQuoted(t *testing.T) {
	const service = "[[services]]\nname = 'web'\nvips = ['10.96.0.1']\nports = [{ port = 80 }]\nendpoints_from = '%s'\n"
	for _, tt := range []struct {
		name, link, text string
		place            string // of the fault
	}{
		{"no list", "x.endpoints.json", `[{ "address": "s3cret" }]`, "x.endpoints.json:1:"},
		{"an unknown key", "x.endpoints.json", `{ "s3cret": 1 }`, "x.endpoints.json:1:3"},
		{"a list that does not fit its service", "x.endpoints.json", `[{ "address": "10.0.0.1", "ports": { "s3cret": 1 } }]`, "x.endpoints.json:1:"},
		{"a service file", "x.toml", "s3cret = 1\n", "x.toml:1:1"},
		{"a service without its list", "x.toml", fmt.Sprintf(service, "s3cret.endpoints.json"), "x.toml:5:"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, owner := range []int{0, 65534} {
				got := faultsOfLink(t, owner, tt.link, tt.text, fmt.Sprintf(service, "x.endpoints.json"))
				if !strings.Contains(got, tt.place) {
					t.Errorf("owner %d: no fault at %s: %s", owner, tt.place, got)
				}
				if quoted := strings.Contains(got, "s3cret"); quoted != (owner == 0) {
					t.Errorf("owner %d: the text is quoted: %v: %s", owner, quoted, got)
				}
			}
		})
	}
}

// faultsOfLink returns all that is said of a directory with a service, and a link with this owner to a file of root: by
// who reads it once, and by a Source in its status and its log.
func faultsOfLink(t *testing.T, owner int, link, text, service string) string {
	dir, far := t.TempDir(), t.TempDir()
	for path, text := range map[string]string{far + "/far": text, dir + "/web.toml": service} {
		fatal.If(t, os.WriteFile(path, []byte(text), 0o600))
	}
	fatal.If(t, os.Symlink(far+"/far", dir+"/"+link))
	fatal.If(t, os.Lchown(dir+"/"+link, owner, 0))
	files, err := read.Rules{}.ReadDir(dir, nil)
	fatal.If(t, err)
	var once, kept strings.Builder
	for _, f := range append(files, read.Rules{}.ReadFile(dir+"/web.toml"), read.Rules{}.ReadFile(dir+"/"+link)) {
		fmt.Fprintln(&once, f.Faults)
	}
	log := new(logtest.Text)
	src := file.New(file.Options{Dir: dir, Poll: time.Hour, Log: slog.New(slog.NewTextHandler(log, nil))})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	sink := make(applied, 8)
	go func() { done <- src.Run(ctx, sink) }()
	pace.Within(time.Minute, func() bool { return len(src.Known().Files) >= 2 })
	for _, f := range src.Known().Files {
		fmt.Fprintln(&kept, f.Faults)
	}
	cancel()
	<-done
	fmt.Fprintln(&kept, log)
	if strings.Contains(once.String(), "s3cret") != strings.Contains(kept.String(), "s3cret") {
		t.Errorf("read once:\n%s\nby a Source:\n%s", &once, &kept)
	}
	return once.String() + kept.String()
}
