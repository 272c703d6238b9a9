//go:build netns

package check_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/internal/disktest"
	"svcproxy.dev/svcproxy/internal/pace"
)

// A file on a file system that does not answer cannot be read. No check waits for it.
func TestDeadDisk(t *testing.T) {
	if !disktest.Isolated(t) {
		return
	}
	dir, far := t.TempDir(), t.TempDir()
	for path, text := range map[string]string{dir + "/a.toml": "services = []\n", far + "/x": "services = []\n"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"x.toml", "x.endpoints.json"} {
		if err := os.Symlink(far+"/x", dir+"/"+name); err != nil {
			t.Fatal(err)
		}
	}
	disktest.Dead(t, far)
	for path, want := range map[string]string{
		dir: "/x.toml: cannot be read: its file system does not answer", dir + "/x.toml": "/x.toml: cannot be read: its file system does not answer",
		dir + "/x.endpoints.json": "/x.endpoints.json: cannot be read: its file system does not answer", far: far + ": cannot be read: its file system does not answer",
	} {
		done := make(chan string, 1)
		go func() {
			r := checker(dir, "").Path(path)
			var text strings.Builder
			for _, f := range r.Faults {
				text.WriteString(f.String() + "\n")
			}
			if !r.Unreadable {
				text.WriteString("Unreadable is false")
			}
			done <- text.String()
		}()
		select {
		case got := <-done:
			if !strings.Contains(got, want) || strings.Contains(got, "is false") {
				t.Errorf("%s: %s; want %s", path, got, want)
			}
		case <-time.After(pace.Scale(time.Minute)):
			t.Fatalf("%s: no answer", path)
		}
	}
}
