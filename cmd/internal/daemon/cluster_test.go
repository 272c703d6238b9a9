//go:build !nokubernetes

package daemon

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
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
func TestClusterUnknown(t *testing.T) {
	r := launch(t, "sources = [\"kubernetes\"]\nhttp_address = \"\"\n[kubernetes]\napi_server = \"http://127.0.0.1:1\"\n")
	r.eventually("failed", func() bool { return strings.Contains(r.log.String(), "refused") })
	st := r.status()
	if st.Ready || st.Loop.Families[0].Waiting != "kubernetes" {
		t.Errorf("ready %v, families %+v", st.Ready, st.Loop.Families)
	}
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
	if err := json.Unmarshal([]byte(body), &config); err != nil {
		t.Fatal(err)
	}
	if code != 200 || config.Svcproxy.NodeName != "n" || !config.Svcproxy.IPVS.StrictARP {
		t.Errorf("/configz: %d %s", code, body)
	}
	if code, _ := get(t, addr, "/livez"); code != 200 {
		t.Errorf("/livez: %d", code)
	}
	http.DefaultClient.CloseIdleConnections()
}
