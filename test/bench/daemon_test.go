//go:build bench

package bench

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/netutil/netnstest"
	"svcproxy.dev/svcproxy/test/lab"
)

const (
	// readyPatience is for a first sync of 10,000 services on iptables-nft, which takes some 10 s.
	readyPatience  = 5 * time.Minute
	changePatience = time.Minute

	// pollInterval is how often the daemon is asked whether a change is in the kernel. It
	// says when it was, to the microsecond; asking more often would only take its time.
	pollInterval = 20 * time.Millisecond
)

// lone keeps the resync out of what is measured: at 30 s it would fall into some changes and not into others.
func lone(v variant) string {
	return fmt.Sprintf("mode = %q\n\n[sync]\nresync_interval = \"1h\"\n", v.mode())
}

// A daemon is svcproxy running on a node.
type daemon struct {
	*lab.Daemon
	node *node

	ready time.Duration // from the start of the process to READY=1
	first time.Duration // the first sync, as the daemon tells it
}

// startDaemon starts svcproxy with its services in files and waits until it is ready.
// It is killed with the test.
func startDaemon(t *testing.T, n *node, all []lab.Service, settings string) (*daemon, error) {
	program, err := binary()
	if err != nil {
		return nil, err
	}
	d := &daemon{node: n}
	if d.Daemon, err = lab.NewDaemon(n.Lab, program); err != nil {
		return nil, err
	}
	t.Cleanup(func() {
		if err := d.Remove(); err != nil {
			t.Error(err)
		}
	})
	if err := errors.Join(d.Settings(settings), writeFiles(d.ConfigDir(), all)); err != nil {
		return nil, err
	}
	if err := d.run(); err != nil {
		return d, fmt.Errorf("svcproxy with %d services: %w\n%s", len(all), err, d.LogTail(logLines))
	}
	m, err := d.metrics()
	d.first = m.duration(fullSyncs)
	return d, err
}

// logLines is how much of the log is shown where something fails.
const logLines = 20

// run starts the process and waits for its READY=1, as systemd would.
func (d *daemon) run() error {
	path := filepath.Join(d.Dir, "notify")
	_ = os.Remove(path) // of an earlier start
	notify, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Net: "unixgram", Name: path})
	if err != nil {
		return err
	}
	defer notify.Close()
	d.Env = []string{"NOTIFY_SOCKET=" + path}
	if err := d.Launch(); err != nil {
		return err
	}
	p := d.Process
	go func() {
		<-p.Ended()
		notify.Close() // nothing more will come
	}()
	if err := awaitReady(notify); err != nil {
		return err
	}
	d.ready = time.Since(p.Begun)
	return nil
}

// awaitReady reads notifications, sd_notify(3), until one says that the service is ready.
func awaitReady(notify *net.UnixConn) error {
	notify.SetReadDeadline(time.Now().Add(readyPatience))
	buf := make([]byte, 4096)
	for {
		size, err := notify.Read(buf)
		if err != nil {
			return fmt.Errorf("waiting for READY=1: %w", err)
		}
		for line := range strings.Lines(string(buf[:size])) {
			if strings.TrimSpace(line) == "READY=1" {
				return nil
			}
		}
	}
}

// A change is what one change of a file cost.
type change struct {
	total time.Duration // from before the rename until the kernel had it
	sync  time.Duration // of that, the sync
}

// replace puts a file into the configuration directory by renaming it there, and waits for the sync.
func (d *daemon) replace(name, text string) (change, error) {
	before, err := d.metrics()
	if err != nil {
		return change{}, err
	}
	place, err := d.Stage(name, text)
	if err != nil {
		return change{}, err
	}
	start := time.Now()
	if err := place(); err != nil {
		return change{}, err
	}
	after, err := d.awaitSync(before, partialSyncs)
	if err != nil {
		return change{}, err
	}
	return change{
		total: time.Duration((after[lastSync] - float64(start.UnixNano())/1e9) * 1e9),
		sync:  after.duration(partialSyncs) - before.duration(partialSyncs),
	}, nil
}

// resync makes the daemon compare everything with the kernel, and returns how long that took.
func (d *daemon) resync() (time.Duration, error) {
	before, err := d.metrics()
	if err != nil {
		return 0, err
	}
	if err := d.Signal(syscall.SIGHUP); err != nil {
		return 0, err
	}
	after, err := d.awaitSync(before, fullSyncs)
	return after.duration(fullSyncs) - before.duration(fullSyncs), err
}

// awaitSync waits until one more sync of a kind than before has ended.
func (d *daemon) awaitSync(before metrics, kind string) (metrics, error) {
	var now metrics
	var err error
	ended := pace.Within(changePatience, func() bool {
		time.Sleep(pollInterval)
		now, err = d.metrics()
		return err != nil || now[failures] > before[failures] || now[kind+"_count"] > before[kind+"_count"]
	})
	switch {
	case err != nil:
		return nil, err
	case now[failures] > before[failures]:
		return nil, fmt.Errorf("a sync failed\n%s", d.LogTail(logLines))
	case !ended:
		return nil, fmt.Errorf("no sync %v after a change\n%s", changePatience, d.LogTail(logLines))
	}
	return now, nil
}

// Names of metrics. Those of the IPv4 family are read.
const (
	fullSyncs    = "svcproxy_sync_full_proxy_rules_duration_seconds"
	partialSyncs = "svcproxy_sync_partial_proxy_rules_duration_seconds"
	lastSync     = "svcproxy_sync_proxy_rules_last_timestamp_seconds"
	failures     = "svcproxy_sync_proxy_rules_failures_total"
)

// metrics are the figures of /metrics, by name without label.
type metrics map[string]float64

func (m metrics) duration(histogram string) time.Duration {
	return time.Duration(m[histogram+"_sum"] * float64(time.Second))
}

func (d *daemon) metrics() (metrics, error) {
	code, body, err := d.node.Node.Get("http://127.0.0.1:10349/metrics")
	if err != nil || code != 200 {
		return nil, errors.Join(fmt.Errorf("reading metrics: status %d", code), err)
	}
	return parseMetrics(body), nil
}

func parseMetrics(text string) metrics {
	m := make(metrics)
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		name, ipv4 := strings.CutSuffix(name, `{ip_family="IPv4"}`)
		if f, err := strconv.ParseFloat(value, 64); err == nil && ipv4 {
			m[name] = f
		}
	}
	return m
}

// resident returns the resident memory of the process, now and at its peak, in MiB.
func (d *daemon) resident() (now, peak int, err error) {
	now, peak, err = netnstest.Memory(d.Pid())
	return now >> 20, peak >> 20, err
}
