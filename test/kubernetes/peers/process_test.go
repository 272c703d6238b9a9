//go:build netns

package peers

import (
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/netutil/netnstest"
	"svcproxy.dev/svcproxy/test/lab"
)

const (
	// stopPatience is for the end of a process, which may have to free much in the kernel.
	stopPatience = 2 * time.Minute

	startPoll  = 50 * time.Millisecond // how often a first sync is asked for
	changePoll = 20 * time.Millisecond // and others. When they were, programs say themselves
)

// errOver says that something took longer than the plan allows.
var errOver = errors.New("it took too long")

// A process is a program that is measured, on the node, in a process group of its own: tools
// that it runs end with it.
type process struct {
	*netnstest.Process
	host    *lab.Host
	metrics string // the URL of its metrics
	prefix  string // of its metrics
}

// startProcess starts a command, whose output goes to a file.
func startProcess(host *lab.Host, cmd *exec.Cmd, log, metrics, prefix string) (*process, error) {
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	p, err := host.Launch(cmd, log)
	return &process{Process: p, host: host, metrics: metrics, prefix: prefix}, err
}

// stop ends the process by SIGTERM, or else kills it, and all that it runs. It returns the
// peak memory of the process or a tool that it ran, in bytes.
func (p *process) stop() (peak float64, err error) {
	_ = p.Cmd.Process.Signal(unix.SIGTERM) // it may have ended
	select {
	case <-p.Ended():
	case <-time.After(stopPatience):
		err = fmt.Errorf("%s still runs %v after SIGTERM", p.Cmd.Path, stopPatience)
	}
	return p.kill(), err
}

func (p *process) kill() (peak float64) {
	_ = p.Kill()
	if usage, ok := p.Cmd.ProcessState.SysUsage().(*syscall.Rusage); ok {
		return float64(usage.Maxrss << 10)
	}
	return 0
}

// A syncs is what a program tells of its syncs of IPv4.
type syncs struct {
	last time.Time     // when one last succeeded
	took time.Duration // all of them
	n    int
}

// Names of metrics, which svcproxy has from kube-proxy.
const (
	metricLast  = "_sync_proxy_rules_last_timestamp_seconds"
	metricTook  = "_sync_proxy_rules_duration_seconds_sum"
	metricCount = "_sync_proxy_rules_duration_seconds_count"
)

// syncs asks the program.
func (p *process) syncs() (s syncs, err error) {
	code, body, err := p.host.Get(p.metrics)
	if err != nil || code != http.StatusOK {
		return s, errors.Join(fmt.Errorf("reading metrics: status %d", code), err)
	}
	for line := range strings.Lines(body) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		name, ipv4 := strings.CutSuffix(name, `{ip_family="IPv4"}`)
		f, err := strconv.ParseFloat(value, 64)
		if err != nil || !ipv4 {
			continue
		}
		switch strings.TrimPrefix(name, p.prefix) {
		case metricLast:
			s.last = time.Unix(0, int64(f*1e9))
		case metricTook:
			s.took = time.Duration(f * 1e9)
		case metricCount:
			s.n = int(f)
		}
	}
	return s, nil
}

// await waits until a sync after begin has succeeded for which done reports that it was
// enough, and returns when that sync was.
func (p *process) await(begin time.Time, bound, poll time.Duration, done func() error) (s syncs, err error) {
	why := errors.New("no sync")
	for time.Since(begin) < bound {
		select {
		case <-p.Ended():
			return s, fmt.Errorf("%s has ended: %s", p.Cmd.Path, p.Cmd.ProcessState)
		case <-time.After(poll):
		}
		now, err := p.syncs()
		if err != nil || now.n == 0 || !now.last.After(begin) {
			continue
		}
		if why = done(); why == nil {
			return p.latest(now), nil
		}
	}
	return s, fmt.Errorf("%w: %v: %w", errOver, bound, why)
}

// latest looks again: one more sync may have ended while done looked.
func (p *process) latest(s syncs) syncs {
	if now, err := p.syncs(); err == nil && now.n > s.n && now.last.After(s.last) {
		return now
	}
	return s
}

// processorTime is that of the process, of tools that it ran, and of those that run.
func (p *process) processorTime() (sum time.Duration, err error) {
	all, err := netnstest.Usages(func(u netnstest.Usage) bool { return u.Group == p.Pid() })
	for _, u := range all {
		sum += u.Processor
		if u.Pid == p.Pid() {
			sum += u.Children
		}
	}
	return sum, err
}

// idle waits until the process does next to nothing for a second, or patience is over.
func (p *process) idle(patience time.Duration) error {
	const look = 250 * time.Millisecond
	deadline, quiet := time.Now().Add(patience), 0
	for before := time.Duration(-1); quiet < 4 && time.Now().Before(deadline); {
		now, err := p.processorTime()
		if err != nil {
			return err
		}
		if quiet++; before < 0 || now-before > 10*time.Millisecond {
			quiet = 0
		}
		before = now
		time.Sleep(look)
	}
	return nil
}
