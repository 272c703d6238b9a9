//go:build bench

package bench

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/test/lab"
)

const (
	// readyPatience is for a first sync of 10,000 services on iptables-nft, which takes some 10 s.
	readyPatience  = 5 * time.Minute
	changePatience = time.Minute
	stopPatience   = 5 * time.Second

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
	node   *node
	cmd    *exec.Cmd
	exited chan struct{} // closed when the process has ended

	ready time.Duration // from the start of the process to READY=1
	first time.Duration // the first sync, as the daemon tells it
}

// startDaemon starts svcproxy with its services in files and waits until it is ready.
// It is killed with the test.
func startDaemon(t *testing.T, n *node, all []lab.Service, settings string) (*daemon, error) {
	for _, sub := range []string{"config", "state", "run"} {
		if err := os.Mkdir(filepath.Join(n.dir, sub), 0o755); err != nil {
			return nil, err
		}
	}
	d := &daemon{node: n, exited: make(chan struct{})}
	if err := os.WriteFile(d.path("svcproxy.toml"), []byte(settings), 0o644); err != nil {
		return nil, err
	}
	if err := writeFiles(d.path(""), all); err != nil {
		return nil, err
	}
	t.Cleanup(d.kill)
	if err := d.run(); err != nil {
		return nil, fmt.Errorf("svcproxy with %d services: %w\n%s", len(all), err, d.logTail())
	}
	m, err := d.metrics()
	d.first = m.duration(fullSyncs)
	return d, err
}

// path returns where a file of the configuration directory is.
func (d *daemon) path(name string) string { return filepath.Join(d.node.dir, "config", name) }

// run starts the process and waits for its READY=1, as systemd would.
func (d *daemon) run() error {
	program, err := binary()
	if err != nil {
		return err
	}
	notify, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Net: "unixgram", Name: filepath.Join(d.node.dir, "notify")})
	if err != nil {
		return err
	}
	defer notify.Close()
	log, err := os.Create(filepath.Join(d.node.dir, "log"))
	if err != nil {
		return err
	}
	defer log.Close()
	dir := d.node.dir
	cmd := exec.Command(program, "run", "--config-dir", dir+"/config", "--state-dir", dir+"/state", "--run-dir", dir+"/run")
	cmd.Env = append(os.Environ(), "NOTIFY_SOCKET="+notify.LocalAddr().String())
	cmd.Stdout, cmd.Stderr = log, log
	start := time.Now()
	if err := d.node.Node.Start(cmd); err != nil {
		return err
	}
	d.cmd = cmd
	go func() {
		cmd.Wait()
		notify.Close() // nothing more will come
		close(d.exited)
	}()
	if err := awaitReady(notify); err != nil {
		return err
	}
	d.ready = time.Since(start)
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

// kill ends the process, if it was started.
func (d *daemon) kill() {
	if d.cmd != nil {
		d.cmd.Process.Kill()
		<-d.exited
	}
}

// logTail returns the end of what the daemon has logged.
func (d *daemon) logTail() string {
	text, err := os.ReadFile(filepath.Join(d.node.dir, "log"))
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-2000):])
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
	temporary := d.path("." + name) // names with a dot are not read
	if err := os.WriteFile(temporary, []byte(text), 0o644); err != nil {
		return change{}, err
	}
	start := time.Now()
	if err := os.Rename(temporary, d.path(name)); err != nil {
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
	if err := d.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		return 0, fmt.Errorf("sending SIGHUP: %w", err)
	}
	after, err := d.awaitSync(before, fullSyncs)
	return after.duration(fullSyncs) - before.duration(fullSyncs), err
}

// awaitSync waits until one more sync of a kind than before has ended.
func (d *daemon) awaitSync(before metrics, kind string) (metrics, error) {
	deadline := time.Now().Add(changePatience)
	for time.Now().Before(deadline) {
		time.Sleep(pollInterval)
		now, err := d.metrics()
		if err != nil {
			return nil, err
		}
		if now[failures] > before[failures] {
			return nil, fmt.Errorf("a sync failed\n%s", d.logTail())
		}
		if now[kind+"_count"] > before[kind+"_count"] {
			return now, nil
		}
	}
	return nil, fmt.Errorf("no sync %v after a change\n%s", changePatience, d.logTail())
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
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", d.cmd.Process.Pid))
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		kib, _ := strconv.Atoi(fields[1])
		switch fields[0] {
		case "VmRSS:":
			now = kib / 1024
		case "VmHWM:":
			peak = kib / 1024
		}
	}
	return now, peak, err
}
