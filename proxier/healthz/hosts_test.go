package healthz

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// Pages are for who asks by an address or a name of this host, and not for names that others can let resolve to it.
func TestPagesNeedAnAddressOrNameOfTheHost(t *testing.T) {
	own := func() []string { return []string{"", "lb1", "lb1.example.com"} } // node_name may be empty
	h := OnlyAs(own, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("answer")) }))
	for _, tt := range []struct {
		host string
		want int
	}{
		{"192.0.2.1", 200}, {"192.0.2.1:10349", 200}, {"127.0.0.1:10349", 200}, {"0.0.0.0:10349", 200},
		{"[::1]:10349", 200}, {"[::1]", 200}, {"[2001:db8::1]:80", 200}, {"[fe80::1%25eth0]:80", 200}, {"::1", 200},
		{"localhost", 200}, {"LocalHost:10349", 200}, {"localhost.:10349", 200},
		{"lb1", 200}, {"LB1:10349", 200}, {"lb1.example.com.:10349", 200}, {"", 200},
		{"evil.example:10349", 403}, {"lb1.evil.example", 403}, {"localhost.evil.example", 403}, {"127.0.0.1.evil.example", 403},
		{"lb2", 403}, {".", 403}, {":10349", 403}, {"192.0.2.1x", 403}, {"[lb3]:80", 403}, {"a b", 403}, {strings.Repeat("a", 5000), 403},
	} {
		r := httptest.NewRequest("GET", "http://x/metrics", nil)
		r.Host = tt.host
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		body := w.Body.String()
		if w.Code != tt.want || (body == "answer") != (tt.want == 200) || len(body) > 1000 {
			t.Errorf("Host %.40q: %d %.200s, want %d", tt.host, w.Code, body, tt.want)
		}
	}
}
