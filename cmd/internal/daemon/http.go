package daemon

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"os"
	"strings"

	"github.com/BurntSushi/toml"

	"svcproxy.dev/svcproxy/cmd/internal/announcer"
	"svcproxy.dev/svcproxy/cmd/internal/changes"
	"svcproxy.dev/svcproxy/cmd/internal/sources"
	"svcproxy.dev/svcproxy/cmd/internal/statuspage"
	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/proxier/healthz"
	"svcproxy.dev/svcproxy/proxier/report"
	"svcproxy.dev/svcproxy/proxier/traffic"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/keep"
)

// handlers returns the handler of each listen address. Health is served at address; metrics, /proxyMode and /configz at
// metricsAddress or, if that is empty, at address, as kube-proxy does; the status page at statusAddress, unless that is
// empty. A request whose Host header has another name than those of this host is refused, see healthz.OnlyAs.
func (d *daemon) handlers(address, metricsAddress, statusAddress string) map[string]http.Handler {
	all := healthz.Handlers(address, metricsAddress, d.http.health, d.http.metrics)
	at := cmp.Or(metricsAddress, address)
	mux := http.NewServeMux()
	mux.Handle("/", all[at])
	mux.HandleFunc("GET /proxyMode", func(w http.ResponseWriter, _ *http.Request) { // the mode in use, as plain text
		answerAs(w, "text/plain; charset=utf-8", []byte(d.mode.Current().Name))
	})
	mux.HandleFunc("GET /configz", d.serveSettings)
	all[at] = mux
	if statusAddress != "" {
		mux := http.NewServeMux()
		if before := all[statusAddress]; before != nil {
			mux.Handle("/", before)
		}
		d.statusPage().AddTo(mux)
		all[statusAddress] = mux
	}
	for address, h := range all {
		all[address] = healthz.OnlyAs(d.hostNames, h)
	}
	return all
}

// statusPage returns the page that shows the status of this host. It asks the parts of d that there are when it is asked.
func (d *daemon) statusPage() *statuspage.Page {
	return statuspage.New(statuspage.Config{
		Summary:  d.outline,
		Changes:  d.changes,
		Snapshot: func() *report.Snapshot { return d.loop.Snapshot() },
		Counts:   func() report.Counts { return d.loop.Counts() },
		AddTraffic: func(ctx context.Context, list []report.ServiceStatus) {
			d.addTraffic(ctx, traffic.Query{Names: namesOf(list)}, list)
		},
		History: func() ([]keep.Revision, error) { return keep.Histories(d.StateDir, "") },
	})
}

// newTracker returns what says which states change. It asks the parts of d that there are when it is asked.
func (d *daemon) newTracker() *changes.Tracker {
	return changes.New(changes.Config{
		Snapshot: func() *report.Snapshot { return d.loop.Snapshot() },
		Sources: func() (list []source.Status) {
			refusals := d.loop.Refusals()
			for _, s := range d.sources {
				list = append(list, sources.AsUsed(known(s), refusals))
			}
			return list
		},
		Sessions: func() []announcer.Session { return d.announcer.States() },
		Mode: func() (name, why string) {
			in := d.mode.Current()
			return in.Name, in.Why
		},
	})
}

// namesOf returns what names services in a traffic.Query; where they are many, none: that costs less.
func namesOf(list []report.ServiceStatus) (names source.Selection) {
	if len(list) > 3 {
		return nil
	}
	for i := range list {
		names = append(names, list[i].Key().String())
	}
	return names
}

// hostNames returns the names that the Host header of a request may have: node_name, http_names and the name of this
// host, in full and up to its first dot.
func (d *daemon) hostNames() []string {
	now := d.settings.Current()
	names := append([]string{now.NodeName}, now.HTTPNames...)
	if host, err := os.Hostname(); err == nil {
		short, _, _ := strings.Cut(host, ".")
		names = append(names, host, short)
	}
	return names
}

// serveSettings answers with the settings in use as JSON: an object whose only key is "svcproxy", which holds the keys of
// svcproxy.toml.
func (d *daemon) serveSettings(w http.ResponseWriter, _ *http.Request) {
	text := configs.Format(d.settings.Current())
	var keys map[string]any
	err := toml.Unmarshal(text, &keys)
	body, err2 := json.Marshal(map[string]any{"svcproxy": keys})
	if err != nil || err2 != nil {
		http.Error(w, "the settings cannot be written as JSON", http.StatusInternalServerError)
		return
	}
	answerAs(w, "application/json", body)
}

func answerAs(w http.ResponseWriter, contentType string, body []byte) {
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_, _ = w.Write(body) // the client may be gone
}
