// Package daemon is svcproxy run: it puts source, proxier, the listeners and
// the control socket together, and follows settings and addresses of the host.
//
// Run makes all parts in the order in which they need each other, and has them work, a goroutine each.
package daemon

import (
	"context"
	"log/slog"
	"os"
	"time"

	"svcproxy.dev/svcproxy/cmd/internal/announcer"
	"svcproxy.dev/svcproxy/cmd/internal/changes"
	"svcproxy.dev/svcproxy/cmd/internal/journal"
	"svcproxy.dev/svcproxy/cmd/internal/modeswitch"
	"svcproxy.dev/svcproxy/cmd/internal/node"
	"svcproxy.dev/svcproxy/cmd/internal/notify"
	"svcproxy.dev/svcproxy/cmd/internal/settings"
	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/internal/lately"
	"svcproxy.dev/svcproxy/proxier/conditions"
	"svcproxy.dev/svcproxy/proxier/healthz"
	"svcproxy.dev/svcproxy/proxier/loop"
	"svcproxy.dev/svcproxy/proxier/traffic"
	"svcproxy.dev/svcproxy/source"
)

// Options say what a daemon works on.
type Options struct {
	ConfigDir, StateDir, RunDir string
	Version                     string
	Namespace                   string // of the abstract socket that one daemon of a network namespace can hold: control.NamespaceName

	// Load reads svcproxy.toml, and lays flags over it.
	Load func(path string) (configs.Settings, []source.Fault, error)

	Reload <-chan os.Signal   // read everything again
	Notify func(state string) // tells systemd
	Watch  time.Duration      // systemd wants a sign of life this often; 0: never
	Stderr *journal.Queue     // takes the log, and is closed by who made it
}

// A daemon is what its parts ask, and tell, each other.
type daemon struct {
	Options
	started time.Time
	log     *slog.Logger

	settings  *settings.Watcher
	host      *node.Host
	mode      *modeswitch.Switch
	sources   []source.Source // that settings ask for
	loop      *loop.Loop
	keeper    *conditions.Keeper
	announcer *announcer.Announcer
	doubts    *doubter
	changes   *changes.Tracker
	notifier  *notify.Notifier
	http      httpParts

	counted  lately.Value[healthz.Counts] // all but the next
	warned   lately.Value[int]
	warnings func(ctx context.Context) []string // of the host, of listeners and of directories, in the order of status
}

// httpParts are the parts of the daemon that answer HTTP requests: the health of the node, the metrics, the counters of
// traffic that the metrics show, and the server.
type httpParts struct {
	health  *healthz.Health
	metrics *healthz.Metrics
	traffic *traffic.Collector
	server  *healthz.Server
}
