//go:build !nokubernetes

package daemon

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/internal/fatal"
)

// Files are served though the API server cannot be reached and nothing is known
// of the cluster: one of them may be how it is reached.
func TestFilesWithoutCluster(t *testing.T) {
	r := launch(t, "sources = [\"file\", \"kubernetes\"]\nhttp_address = \"\"\n[kubernetes]\napi_server = \"http://127.0.0.1:1\"\n")
	r.ready()
	if names, _, _ := r.kernel.seen(); names != "default/web" {
		t.Errorf("kernel holds %q", names)
	}
	st := r.status()
	if s := st.Sources[1]; s.Synced || s.Connection.Connected || !strings.Contains(s.Connection.Error, "refused") {
		t.Errorf("source %+v, connection %+v", s, s.Connection)
	}
}

// Alone, a cluster of which nothing is known is waited for, and status claims nothing.
func TestUnknownClusterIsAwaited(t *testing.T) {
	r := launch(t, "sources = [\"kubernetes\"]\nhttp_address = \"\"\n[kubernetes]\napi_server = \"http://127.0.0.1:1\"\n")
	r.eventually("failed", func() bool { return strings.Contains(r.log.String(), "refused") })
	st := r.status()
	if st.Ready || st.Loop.Families[0].Waiting != "kubernetes" {
		t.Errorf("ready %v, families %+v", st.Ready, st.Loop.Families)
	}
}

// Pages are not read by a name that is not this host's; http_names adds names at run time.
func TestPagesByName(t *testing.T) {
	addr, metrics := freePort(t), freePort(t)
	settings := "http_address = \"" + addr + "\"\nmetrics_address = \"" + metrics + "\"\nnode_name = \"n1\"\n"
	r := launch(t, settings)
	r.ready()
	get(t, addr, "/livez") // waits until it listens
	get(t, metrics, "/metrics")
	expect := func(host string, want int) {
		t.Helper()
		for at, paths := range map[string][]string{addr: {"/healthz", "/livez", "/readyz"}, metrics: {"/metrics", "/proxyMode", "/configz"}} {
			for _, path := range paths {
				if got := askAs(t, host, "http://"+at+path); got != want {
					t.Errorf("%s of %s: %d, want %d", path, host, got, want)
				}
			}
		}
	}
	expect("evil.example", http.StatusForbidden)
	expect("lb.example", http.StatusForbidden)
	expect("n1:10349", http.StatusOK)
	expect("192.0.2.1", http.StatusOK)
	r.write("svcproxy.toml", settings+"http_names = [\"lb.example\"]\n")
	r.eventually("a name more", func() bool { return askAs(t, "lb.example", "http://"+metrics+"/metrics") == http.StatusOK })
	expect("lb.example", http.StatusOK)
	expect("evil.example", http.StatusForbidden)
	http.DefaultClient.CloseIdleConnections()
}

// askAs returns the status of an answer to a request with this Host header.
func askAs(t *testing.T, host, url string) int {
	t.Helper()
	req, err := http.NewRequest(http.MethodGet, url, nil)
	fatal.If(t, err)
	req.Host = host
	resp, err := http.DefaultClient.Do(req)
	fatal.If(t, err)
	resp.Body.Close()
	return resp.StatusCode
}

// What tools ask kube-proxy for is answered too.
func TestModeAndSettingsOverHTTP(t *testing.T) {
	addr := freePort(t)
	r := launch(t, "http_address = \""+addr+"\"\nnode_name = \"n\"\n[ipvs]\nstrict_arp = true\n")
	r.ready()
	if code, body := get(t, addr, "/proxyMode"); code != 200 || body != "iptables" {
		t.Errorf("/proxyMode: %d %q", code, body)
	}
	code, body := get(t, addr, "/configz")
	var config struct {
		Svcproxy struct {
			NodeName string `json:"node_name"`
			IPVS     struct {
				StrictARP bool `json:"strict_arp"`
			} `json:"ipvs"`
		} `json:"svcproxy"`
	}
	fatal.If(t, json.Unmarshal([]byte(body), &config))
	if code != 200 || config.Svcproxy.NodeName != "n" || !config.Svcproxy.IPVS.StrictARP {
		t.Errorf("/configz: %d %s", code, body)
	}
	if code, _ := get(t, addr, "/livez"); code != 200 {
		t.Errorf("/livez: %d", code)
	}
	http.DefaultClient.CloseIdleConnections()
}
