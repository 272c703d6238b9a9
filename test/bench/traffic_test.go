//go:build bench

package bench

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/netutil/netnstest"
	"svcproxy.dev/svcproxy/test/lab"
)

const (
	rateThreads = 2 // that make connections at a time
	rateTurns   = 4 // of connectRound connections, in a round
	rateRounds  = 60
)

// A counting is a node where connections are counted in some way.
type counting struct {
	what   string
	daemon *daemon
	at     time.Duration   // processor time of the daemon before the first round
	times  []time.Duration // of processors, for rounds
}

// TestTraffic compares the processor time of connections, that of both ends and of
// svcproxy, where they are counted always and where they are not, by turns: on a host
// that does nothing else the rate of connections is its inverse. Other work on the
// machine matters less to it than to the rate.
func TestTraffic(t *testing.T) {
	logMachine(t)
	all := makeServices(fewServices)
	to := last(all)
	const always = "\n[metrics]\ntraffic = true\n"
	nodes := []*counting{
		newCounting(t, all, "not counted", "0", ""),
		newCounting(t, all, "the same again", "0", ""),
		newCounting(t, all, "the kernel counts packets, nobody asks", "1", ""),
		newCounting(t, all, "counted", "0", always),
		newCounting(t, all, "counted, with packets", "1", always),
	}
	for i := range rateRounds + 1 {
		for j := range nodes { // each is first as often as the others
			if err := nodes[(i+j)%len(nodes)].round(to, i > 0); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, n := range nodes[3:] {
		if err := n.complete(all); err != nil {
			t.Error(err)
		}
	}
	for _, n := range nodes {
		own, err := n.daemon.processorTime()
		if err != nil {
			t.Fatal(err)
		}
		const each = rateThreads * rateTurns * connectRound
		own = (own - n.at) / (rateRounds * each)
		t.Logf("%s: %v a connection, %.3f times the first node's in the same round; and %v of svcproxy", n.what, round(median(n.times)/each), n.ratio(nodes[0]), round(own))
	}
	if r := nodes[3].ratio(nodes[0]); r > 1.15 {
		t.Errorf("connections that are counted take %.3f times the processor time, promised at most 1.15", r)
	}
}

// complete checks that every connection of the rounds was counted.
func (c *counting) complete(all []lab.Service) error {
	const want = (rateRounds + 1) * rateThreads * rateTurns * connectRound
	name := fmt.Sprintf("svcproxy_service_connections_total{namespace=\"default\",service=%q} ", all[len(all)-1].Name)
	_, body, err := c.daemon.node.Node.Get("http://127.0.0.1:10349/metrics")
	if err != nil {
		return err
	}
	for line := range strings.Lines(body) {
		if value, ok := strings.CutPrefix(line, name); ok {
			if strings.TrimSpace(value) == strconv.Itoa(want) {
				return nil
			}
			return fmt.Errorf("%s: %s connections were counted, want %d", c.what, strings.TrimSpace(value), want)
		}
	}
	return fmt.Errorf("%s: no metric %s", c.what, name)
}

// ratio returns the median of how much more a round took than the other's.
func (c *counting) ratio(other *counting) float64 {
	ratios := make([]float64, len(c.times))
	for i := range ratios {
		ratios[i] = c.times[i].Seconds() / other.times[i].Seconds()
	}
	slices.Sort(ratios)
	return ratios[len(ratios)/2]
}

// newCounting starts svcproxy on a node of its own.
func newCounting(t *testing.T, all []lab.Service, what, acct, settings string) *counting {
	t.Helper()
	c := &counting{what: what}
	n, err := newNode(t, nftables)
	if err == nil {
		_, err = n.Node.Run("sysctl", "-qw", "net.netfilter.nf_conntrack_acct="+acct)
	}
	if err == nil {
		c.daemon, err = startDaemon(t, n, all, lone(nftables)+settings)
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// round notes how much processor time it takes to make connections. The first, which
// warms caches up, is not noted.
func (c *counting) round(to netip.AddrPort, noted bool) (err error) {
	if noted && c.times == nil {
		if c.at, err = c.daemon.processorTime(); err != nil {
			return err
		}
	}
	var wg sync.WaitGroup
	errs := make([]error, rateThreads*rateTurns)
	before := ownProcessorTime()
	for i := range rateThreads {
		wg.Go(func() {
			for j := range rateTurns {
				_, errs[i*rateTurns+j] = connectTimes(c.daemon.node.Node, to)
			}
		})
	}
	wg.Wait()
	if noted {
		c.times = append(c.times, ownProcessorTime()-before)
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("%s: %w", c.what, err)
	}
	return nil
}

// ownProcessorTime is that of this process, which has both ends of the connections.
func ownProcessorTime() time.Duration {
	var r unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// processorTime is that of svcproxy.
func (d *daemon) processorTime() (time.Duration, error) {
	u, err := netnstest.UsageOf(d.Pid())
	return u.Processor, err
}
