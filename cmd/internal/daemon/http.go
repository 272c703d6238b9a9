package daemon

import (
	"cmp"
	"encoding/json"
	"net/http"

	"github.com/BurntSushi/toml"

	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/proxier/healthz"
)

// handlers answers for the node, by listen address. The mode and the settings in
// use are where metrics are, as kube-proxy's.
func (d *daemon) handlers(address, metricsAddress string) map[string]http.Handler {
	all := healthz.Handlers(address, metricsAddress, d.health, d.metrics)
	at := cmp.Or(metricsAddress, address)
	mux := http.NewServeMux()
	mux.Handle("/", all[at])
	mux.HandleFunc("GET /proxyMode", d.serveMode)
	mux.HandleFunc("GET /configz", d.serveSettings)
	all[at] = mux
	return all
}

func (d *daemon) serveMode(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_, _ = w.Write([]byte(d.mode.current().Name)) // the client may be gone
}

// serveSettings answers with the keys of svcproxy.toml, under the name of this program.
func (d *daemon) serveSettings(w http.ResponseWriter, _ *http.Request) {
	text := configs.Format(d.settings.current())
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
