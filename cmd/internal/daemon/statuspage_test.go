//go:build !nokubernetes

package daemon

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/cmd/internal/control"
	"svcproxy.dev/svcproxy/internal/fatal"
)

// The status page is beside health and metrics, or at an address of its own, and says what the control socket says.
func TestStatusPage(t *testing.T) {
	addr, own := freePort(t), freePort(t)
	settings := "http_address = \"" + addr + "\"\nnode_name = \"n1\"\n"
	for _, tt := range []struct{ more, at, not string }{
		{"", addr, ""},
		{"status_address = \"" + own + "\"\n", own, addr},
		{"status_address = \"\"\n", "", addr},
	} {
		t.Run(tt.more, func(t *testing.T) {
			r := launch(t, settings+tt.more)
			r.ready()
			if code, _ := get(t, addr, "/metrics"); code != http.StatusOK {
				t.Errorf("/metrics: %d", code)
			}
			for _, path := range []string{"/", "/files", "/api/v1/status", "/api/v1/services", "/api/v1/files", "/api/v1/openapi.json"} {
				if tt.at != "" {
					if code, body := get(t, tt.at, path); code != http.StatusOK {
						t.Errorf("%s: %d %s", path, code, body)
					}
					if code := askAs(t, "evil.example", "http://"+tt.at+path); code != http.StatusForbidden {
						t.Errorf("%s by another name: %d", path, code)
					}
				}
				if tt.not != "" {
					if code, _ := get(t, tt.not, path); code != http.StatusNotFound {
						t.Errorf("%s where there is no page: %d", path, code)
					}
				}
			}
			if tt.at != "" {
				r.expectPage(tt.at)
			}
			http.DefaultClient.CloseIdleConnections()
		})
	}
}

// expectPage compares what is at an address with what the control socket says.
func (r *running) expectPage(addr string) {
	r.t.Helper()
	if _, body := get(r.t, addr, "/"); !strings.Contains(body, "<h1>n1</h1>") || !strings.Contains(body, "default/web") || !strings.Contains(body, "REJECTS") {
		r.t.Errorf("the page:\n%s", body)
	}
	_, body := get(r.t, addr, "/api/v1/status")
	var sum control.Summary
	in := json.NewDecoder(strings.NewReader(body))
	in.DisallowUnknownFields()
	fatal.If(r.t, in.Decode(&sum))
	if st := r.status(); sum.PID != st.PID || sum.Services != len(st.Loop.Services) || !sum.Ready {
		r.t.Errorf("status is %s, and the socket has %+v", body, st)
	}
}
