//go:build bench

package bench

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/test/lab"
)

const (
	probeInterval = 2 * time.Millisecond

	// loadPatience is for a load of 100,000 services into a running svcproxy.
	loadPatience = 5 * time.Minute
)

// stall shows how long new connections are held up while endpoints load: at the
// start of svcproxy, into a svcproxy that runs, and with kube-proxy's layout.
func (b *bench) stall(t *testing.T) {
	t.Run("start", func(t *testing.T) {
		n := mustNode(t, b.variant)
		p := probeAll(t, n.aside(), n.elsewhere())
		if _, err := startDaemon(t, n, makeServices(b.count), lone(n.variant)); err != nil {
			t.Fatal(err)
		}
		p.report(t, fmt.Sprintf("svcproxy starts with %d services", b.count))
	})
	t.Run("running", func(t *testing.T) {
		all := makeServices(b.count)
		d, err := newDaemon(t, b.variant, all[:fewServices])
		if err != nil {
			t.Fatal(err)
		}
		loaded := target{what: "a service that was there before", from: d.node.Node, to: last(all[:1])}
		p := probeAll(t, loaded, d.node.aside(), d.node.elsewhere())
		took, err := d.add(all)
		if err != nil {
			t.Fatal(err)
		}
		m, err := d.metrics()
		if err != nil {
			t.Fatal(err)
		}
		p.report(t, fmt.Sprintf("%d services are added to %d in %v, syncs %v", b.count-fewServices, fewServices,
			round(took), round(m.duration(partialSyncs))))
	})
	t.Run("kube", func(t *testing.T) {
		n := mustNode(t, b.variant)
		p := probeAll(t, n.aside(), n.elsewhere())
		if _, err := n.loadKube(makeServices(services)); err != nil {
			t.Fatal(err)
		}
		p.report(t, fmt.Sprintf("nft -f loads %d services in kube-proxy's layout", services))
	})
}

// mustNode is newNode, or the end of the test.
func mustNode(t *testing.T, v variant) *node {
	t.Helper()
	n, err := newNode(t, v)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// aside is a server that no service names, reached through node's rules.
func (n *node) aside() target {
	to := netip.AddrPortFrom(n.Local[1].Addr().V4, lab.EndpointPorts[1])
	return target{what: "a server that is no endpoint", from: n.Node, to: to}
}

// elsewhere is a server on the host that asks, where no rules are: it tells how
// long connections wait for nothing but the processor.
func (n *node) elsewhere() target {
	to := netip.AddrPortFrom(n.Local[2].Addr().V4, lab.EndpointPorts[1])
	return target{what: "a server in a namespace without rules", from: n.Local[2], to: to}
}

// add writes the files of all services, and waits until each of the last services of a file answers.
func (d *daemon) add(all []lab.Service) (time.Duration, error) {
	staging := filepath.Join(d.Dir, "staging")
	if err := os.Mkdir(staging, 0o755); err != nil {
		return 0, err
	}
	if err := writeFiles(staging, all); err != nil {
		return 0, err
	}
	start := time.Now()
	for from := 0; from < len(all); from += perFile {
		if err := os.Rename(filepath.Join(staging, fileName(from)), filepath.Join(d.ConfigDir(), fileName(from))); err != nil {
			return 0, err
		}
	}
	for at := min(perFile, len(all)); at <= len(all); at += perFile {
		last := target{what: all[at-1].Name, from: d.node.Node, to: last(all[:at])}
		if err := d.await(last); err != nil {
			return 0, err
		}
	}
	return time.Since(start), nil
}

// await waits until a service answers.
func (d *daemon) await(to target) error {
	return pace.Poll(loadPatience, to.answered)
}

// probers make new connections to several targets at once.
type probers []*prober

func probeAll(t *testing.T, targets ...target) (all probers) {
	for _, to := range targets {
		all = append(all, probe(t, to))
	}
	time.Sleep(100 * probeInterval) // some in peace
	return all
}

// report ends the probers and shows what they met while something happened.
func (all probers) report(t *testing.T, while string) {
	t.Helper()
	t.Logf("while %s:", while)
	for _, p := range all {
		p.end()
		sorted := slices.Sorted(slices.Values(p.times))
		n := len(sorted)
		t.Logf("%s: longest connect %v, of a thousand all but one at most %v, p50 %v; longest wait for a processor %v; %d connections, %d failed",
			p.what, round(sorted[n-1]), round(sorted[n-1-n/1000]), round(median(sorted)), round(p.late), n, p.failed)
		if p.failed > 0 {
			t.Errorf("%s: %d of %d connections failed", p.what, p.failed, len(p.times))
		}
	}
}

// A prober makes new connections, one after the other, until it is stopped.
type prober struct {
	target
	late   time.Duration // at most, from when a connection was due until the thread had a processor
	failed int
	end    func() // and waits for the last
}

// probe starts a prober, which ends with the test if not before.
func probe(t *testing.T, to target) *prober {
	p := &prober{target: to}
	stop, ended := make(chan struct{}), make(chan struct{})
	p.end = sync.OnceFunc(func() {
		close(stop)
		<-ended
	})
	t.Cleanup(p.end)
	go func() {
		defer close(ended)
		err := p.from.Do(func() error {
			return firstInLine(func() { p.run(stop) })
		})
		if err != nil {
			t.Errorf("%s: %v", p.what, err)
		}
	}()
	return p
}

// firstInLine runs do on a thread that the processor serves before all others, so
// that what it waits for is the kernel, and not the one that else has work.
func firstInLine(do func()) error {
	const self = 0
	usual, err := unix.SchedGetAttr(self, 0)
	if err != nil {
		return fmt.Errorf("reading how this thread is scheduled: %w", err)
	}
	if err := unix.SchedSetAttr(self, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1}, 0); err != nil {
		return fmt.Errorf("scheduling this thread before others: %w", err)
	}
	do()
	return unix.SchedSetAttr(self, usual, 0)
}

// run connects until stop is closed. A transaction of nf_tables may keep its
// processor from all threads, though not from packets, so lateness is told apart. The
// thread sleeps by itself, as waking up through the Go runtime needs threads that come last.
func (p *prober) run(stop <-chan struct{}) {
	interval := unix.NsecToTimespec(int64(probeInterval))
	for {
		select {
		case <-stop:
			return
		default:
		}
		due := time.Now().Add(probeInterval)
		if unix.Nanosleep(&interval, nil) != nil {
			continue // a signal of the Go runtime
		}
		p.late = max(p.late, time.Since(due))
		took, err := lab.ConnectTime(p.to)
		p.times = append(p.times, took)
		if err != nil && !errors.Is(err, unix.EINTR) { // interrupted: it has been waiting that long at least
			p.failed++
		}
	}
}
