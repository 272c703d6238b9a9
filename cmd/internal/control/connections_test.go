package control

import (
	"strings"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/source"
)

func TestWriteConnections(t *testing.T) {
	now := time.Unix(1000, 0)
	st := &Status{Sources: []source.Status{{
		Source:     "kubernetes",
		Connection: &source.Connection{Server: "https://192.0.2.1:6443", Since: now.Add(-time.Minute), Error: "connection\x1b refused"},
		Objects: []source.FileStatus{{Path: "default/web", State: source.Refused, Since: now.Add(-time.Hour),
			Faults: []source.Fault{{Msg: `service "default/web" is already defined (web.toml:1:1)`}}}},
	}}}
	var b strings.Builder
	fatal.If(t, st.WriteTable(&b, now))
	want := `SOURCE      SERVER                  STATE                             SINCE
kubernetes  https://192.0.2.1:6443  stale: connection\x1b refused     1m0s

OBJECT       STATE    SINCE
default/web  refused  1h0m
`
	got := b.String()
	if strings.Contains(got, "FILE") || !strings.Contains(got, "FAULTS\nservice \"default/web\" is already defined (web.toml:1:1)\n") {
		t.Errorf("got\n%s", got)
	}
	if !strings.Contains(strings.Join(strings.Fields(got), " "), strings.Join(strings.Fields(want), " ")) {
		t.Errorf("\n got: %s\nwant: %s", got, want)
	}
}
