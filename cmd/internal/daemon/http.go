package daemon

import (
	"cmp"
	"encoding/json"
	"net/http"
	"os"
	"strings"

	"github.com/BurntSushi/toml"

	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/proxier/healthz"
	"svcproxy.dev/svcproxy/proxier/traffic"
)

// httpParts are what is told by HTTP: health, and metrics, for which traffic is counted.
type httpParts struct {
	health  *healthz.Health
	metrics *healthz.Metrics
	traffic *traffic.Collector
	server  *healthz.Server
}

// kubeProxyPages answer what kube-proxy does: the mode and the settings in use.
type kubeProxyPages struct {
	mode     *modeSwitch
	settings *settingsWatcher
}

// handlers answers for the node, by listen address, for who asks by one of the names of this host. The
// mode and the settings in use are where metrics are, as kube-proxy's.
func (h *httpParts) handlers(address, metricsAddress string, pages kubeProxyPages) map[string]http.Handler {
	all := healthz.Handlers(address, metricsAddress, h.health, h.metrics)
	at := cmp.Or(metricsAddress, address)
	mux := http.NewServeMux()
	mux.Handle("/", all[at])
	mux.HandleFunc("GET /proxyMode", pages.serveMode)
	mux.HandleFunc("GET /configz", pages.serveSettings)
	all[at] = mux
	for address, h := range all {
		all[address] = healthz.OnlyAs(pages.settings.hostNames, h)
	}
	return all
}

// hostNames returns the names by which pages may be asked for.
func (w *settingsWatcher) hostNames() []string {
	now := w.current()
	names := append([]string{now.NodeName}, now.HTTPNames...)
	if host, err := os.Hostname(); err == nil {
		short, _, _ := strings.Cut(host, ".")
		names = append(names, host, short)
	}
	return names
}

func (p kubeProxyPages) serveMode(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_, _ = w.Write([]byte(p.mode.current().Name)) // the client may be gone
}

// serveSettings answers with the keys of svcproxy.toml, under the name of this program.
func (p kubeProxyPages) serveSettings(w http.ResponseWriter, _ *http.Request) {
	text := configs.Format(p.settings.current())
	var keys map[string]any
	err := toml.Unmarshal(text, &keys)
	body, err2 := json.Marshal(map[string]any{"svcproxy": keys})
	if err != nil || err2 != nil {
		http.Error(w, "the settings cannot be written as JSON", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_, _ = w.Write(body) // the client may be gone
}
