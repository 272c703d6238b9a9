//go:build netns

package check_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/internal/disktest"
	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/internal/pace"
)

// A file on a file system that does not answer cannot be read: a service file, svcproxy.toml, the password of a router.
// No check waits for it.
func TestChecksDoNotWaitForADeadDisk(t *testing.T) {
	if !disktest.Isolated(t) {
		return
	}
	dir, far := t.TempDir(), t.TempDir()
	for path, text := range map[string]string{dir + "/a.toml": "services = []\n", far + "/x": "services = []\n"} {
		fatal.If(t, os.WriteFile(path, []byte(text), 0o600))
	}
	for _, name := range []string{"x.toml", "x.endpoints.json"} {
		fatal.If(t, os.Symlink(far+"/x", dir+"/"+name))
	}
	linked, secret := t.TempDir(), t.TempDir()
	for path, target := range map[string]string{linked + "/svcproxy.toml": far + "/x", linked + "/a.toml": dir + "/a.toml", secret + "/password": far + "/x"} {
		fatal.If(t, os.Symlink(target, path))
	}
	peer := "[[bgp.peers]]\naddress = \"192.0.2.1\"\nas = 64512\npassword_file = \"" + secret + "/password\"\n"
	fatal.If(t, os.WriteFile(secret+"/svcproxy.toml", []byte("[bgp]\nas = 64512\n"+peer), 0o600))
	disktest.Dead(t, far)
	const none = ": cannot be read: its file system does not answer\n"
	tests := []struct{ configDir, path, want string }{
		{dir, dir, dir + "/x.toml" + none}, {dir, dir + "/x.toml", dir + "/x.toml" + none},
		{dir, dir + "/x.endpoints.json", dir + "/x.endpoints.json" + none}, {dir, far, far + none},
		{linked, linked, linked + "/svcproxy.toml" + none}, {linked, linked + "/a.toml", linked + "/svcproxy.toml" + none},
		{linked, linked + "/svcproxy.toml", linked + "/svcproxy.toml" + none}, {dir, linked, linked + "/svcproxy.toml" + none},
		{secret, secret, "reading the password of peer 192.0.2.1: open " + secret + "/password: its file system does not answer\n"},
	}
	answers := make([]chan string, len(tests))
	for i, tt := range tests { // all at once: each waits
		answers[i] = make(chan string, 1)
		go func() {
			r := checker(tt.configDir, "").Path(tt.path)
			var text strings.Builder
			for _, f := range r.Faults {
				text.WriteString(f.String() + "\n")
			}
			if !r.Unreadable && tt.path != secret { // the settings can be used without it
				text.WriteString("Unreadable is false")
			}
			answers[i] <- text.String()
		}()
	}
	for i, tt := range tests {
		select {
		case got := <-answers[i]:
			if !strings.Contains(got, tt.want) || strings.Contains(got, "is false") {
				t.Errorf("%s: %s; want %s", tt.path, got, tt.want)
			}
		case <-time.After(pace.Scale(time.Minute)):
			t.Fatalf("%s: no answer", tt.path)
		}
	}
}
