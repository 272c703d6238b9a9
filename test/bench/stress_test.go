//go:build bench

package bench

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/netutil/netnstest"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/test/lab"
)

// Environment variables of TestStress.
const (
	// envSoak has all sizes, and takes half an hour; without it TestStress takes some five minutes.
	envSoak = "SVCPROXY_SOAK"

	// envTargets has the figures held to what is promised of an idle machine.
	envTargets = "SVCPROXY_STRESS_TARGETS"
)

// A stress is one size of what is measured. Quiet and under stress, and idle in
// between, are three times of one daemon on one node.
type stress struct {
	variant  variant
	services int

	entries int // of connection tracking
	clients int // of affinity, in nftables mode

	samples int           // changes, quiet and under stress
	phase   time.Duration // after which no further sample is begun
	idle    time.Duration // for which processor time is looked at: more than a resync_interval

	target time.Duration // p99 under stress; 0: 1.5 times the quiet one and slack
}

// pace returns how long d on a host is here: in a guest, whose processor is emulated,
// five times as long, or all that goes on beside would leave it no time.
func (s stress) pace(d time.Duration) time.Duration {
	if s.variant == ipvs {
		return 5 * d
	}
	return d
}

// slack is how much longer a change may take under stress, whatever it takes in peace.
func (s stress) slack() time.Duration { return s.pace(50 * time.Millisecond) }

// inGuest are what there is to measure in a guest; nil: this is none.
var inGuest []stress

// stresses are what there is to measure. nf_conntrack_max is 262,144 by default.
func stresses() []stress {
	if inGuest != nil {
		return inGuest
	}
	if os.Getenv(envSoak) == "1" {
		const entries, clients, samples, phase, idle = 250_000, 400_000, 300, 3 * time.Minute, time.Minute
		return []stress{
			{nftables, 10_000, entries, clients, samples, phase, idle, 20 * time.Millisecond},
			{nftables, 100_000, entries, clients, samples, phase, idle, 50 * time.Millisecond},
			{nft, 5_000, entries, 0, samples, phase, idle, 0},
			{legacy, 5_000, entries, 0, samples, phase, idle, 0},
		}
	}
	const entries, clients, samples, phase, idle = 250_000, 100_000, 60, 12 * time.Second, 33 * time.Second
	const glance = 3 * time.Second // where nothing is promised of an idle daemon
	return []stress{
		{nftables, 10_000, entries, clients, samples, phase, idle, 20 * time.Millisecond},
		{nft, 1_000, entries, 0, samples, phase, glance, 0},
		{legacy, 1_000, entries, 0, samples, phase, glance, 0},
	}
}

// stressPatience is how long a change may take at most.
const stressPatience = time.Minute

// Settings quiet, which are the defaults, and under stress.
const (
	quietSettings  = "mode = %q\n"
	stressSettings = "mode = %q\n[sync]\nresync_interval = \"%v\"\n"
)

// TestStress measures what a change of one service takes from the rename of its
// file until a packet meets it, in peace and while tables are full and others
// write rules. Figures are shown; only a change that never comes is a failure.
func TestStress(t *testing.T) {
	logMachine(t)
	var rows []*figures
	for _, s := range stresses() {
		t.Run(fmt.Sprintf("%s-%d", s.variant.tables(), s.services), func(t *testing.T) {
			f, err := s.measure(t)
			rows = append(rows, f)
			if err != nil {
				t.Error(err)
			}
			f.hold(t)
		})
	}
	t.Log("\n" + table(rows))
	logMachine(t)
}

// figures are what was measured.
type figures struct {
	stress
	quiet, stressed           []time.Duration // of changes, sorted
	idle, idleFull            time.Duration   // of processor a minute, with empty and with full tables
	peakQuiet, peakStressed   int             // resident memory, MiB
	entriesMade, writesBeside int
}

// measure runs one size. What was measured before an error is in the figures.
func (s stress) measure(t *testing.T) (f *figures, err error) {
	f = &figures{stress: s}
	n, err := newNode(t, s.variant)
	if err != nil {
		return f, err
	}
	d, err := startDaemon(t, n, stressServices(s.services), fmt.Sprintf(quietSettings, s.variant.mode()))
	if err == nil {
		err = d.churn(0)
	}
	if err != nil {
		return f, err
	}
	if f.idle, err = d.idle(s.idle / 3); err != nil {
		return f, err
	}
	if f.quiet, err = s.sample(d); err != nil {
		return f, fmt.Errorf("in peace: %w", err)
	}
	if _, f.peakQuiet, err = d.resident(); err != nil {
		return f, err
	}
	if err := s.fill(n); err != nil {
		return f, err
	}
	if f.idleFull, err = d.idle(s.idle); err != nil {
		return f, err
	}
	return f, s.underStress(t, d, f)
}

// fill makes clients and entries.
func (s stress) fill(n *node) error {
	if s.clients > 0 {
		if err := n.visit(netip.AddrPortFrom(stickyVIP, vipPort), s.clients); err != nil {
			return err
		}
	}
	return n.track(s.entries)
}

// underStress samples while the kernel is compared every second, a neighbour
// writes rules, and endpoints that clients are kept on come and go.
func (s stress) underStress(t *testing.T, d *daemon, f *figures) (err error) {
	if f.entriesMade, err = d.node.entries(); err != nil {
		return err
	}
	if err := d.settle(fmt.Sprintf(stressSettings, s.variant.mode(), s.pace(time.Second))); err != nil {
		return err
	}
	if s.clients > 0 {
		defer background(t, time.Second, d.churn)()
	}
	stop := background(t, s.pace(100*time.Millisecond), d.node.write)
	f.stressed, err = s.sample(d)
	f.writesBeside = stop()
	if err != nil {
		return fmt.Errorf("under stress: %w\n%s", err, d.LogTail(logLines))
	}
	_, f.peakStressed, err = d.resident()
	return err
}

// Addresses of the service that changes and of one with affinity.
var (
	probeVIP  = netip.MustParseAddr("10.95.0.1")
	stickyVIP = netip.MustParseAddr("10.95.0.2")
)

// stressServices returns n services, some with UDP.
func stressServices(n int) []lab.Service {
	all := makeServices(n)
	for i := range min(10, n) {
		all[i].Ports = append(all[i].Ports, lab.Port{Name: "packets", Protocol: "udp", Port: vipPort, TargetPort: lab.EndpointPorts[0]})
	}
	return all
}

// stickyService is one with affinity.
func stickyService() lab.Service {
	s := makeServices(1)[0]
	s.Name, s.VIPs, s.SessionAffinity = "sticky", []netip.Addr{stickyVIP}, "client_ip"
	return s
}

// probeService is the one that changes: its target port tells the version.
func probeService(port uint16) lab.Service {
	s := makeServices(1)[0]
	s.Name, s.VIPs, s.Ports[0].TargetPort = "probe", []netip.Addr{probeVIP}, port
	return s
}

// sample changes the service again and again, at random moments, and returns what the changes took, sorted.
func (s stress) sample(d *daemon) (times []time.Duration, err error) {
	defer func() { slices.Sort(times) }()
	ports := lab.EndpointPorts
	for end, i := time.Now().Add(s.phase), 0; i < s.samples && time.Now().Before(end); i++ {
		took, err := d.probe(ports[i%len(ports)])
		if err != nil {
			return times, err
		}
		times = append(times, took)
		time.Sleep(rand.N(300 * time.Millisecond))
	}
	return times, nil
}

// probe changes the service to a port and waits until packets meet it. It asks
// every millisecond, and more seldom when it takes long, so as not to be what it measures.
func (d *daemon) probe(port uint16) (time.Duration, error) {
	start := time.Now()
	if err := d.rename("probe.json", probeService(port)); err != nil {
		return 0, err
	}
	q := lab.Question{From: d.node.Node, Protocol: source.TCP, To: netip.AddrPortFrom(probeVIP, vipPort)}
	for {
		got, took := lab.Ask(q), time.Since(start)
		switch {
		case got.Outcome == lab.Answered && got.Port == port:
			return took, nil
		case took > stressPatience:
			return 0, fmt.Errorf("a change is not in the kernel after %v: %s", took, got)
		}
		time.Sleep(max(time.Millisecond, took/50))
	}
}

// rename puts a file with a service into the configuration directory.
func (d *daemon) rename(name string, s lab.Service) error {
	text, err := lab.File(s)
	if err != nil {
		return err
	}
	return d.WriteFile(name, text)
}

// settle writes svcproxy.toml and waits until it is in use.
func (d *daemon) settle(text string) error {
	if err := d.Settings(text); err != nil {
		return err
	}
	return pace.Poll(stressPatience, func() error {
		log, err := d.Process.Log()
		if err == nil && !strings.Contains(log, "settings changed") {
			err = errors.New("the daemon does not notice that its settings have changed")
		}
		return err
	})
}

// idle returns how much processor time the daemon and its children take in a minute, measured for a while.
func (d *daemon) idle(during time.Duration) (time.Duration, error) {
	before, err := d.processor()
	if err != nil {
		return 0, err
	}
	time.Sleep(during)
	after, err := d.processor()
	return time.Duration(float64(after-before) * float64(time.Minute) / float64(during)), err
}

// processor returns the time that the daemon and its children that ended have had, proc_pid_stat(5).
func (d *daemon) processor() (time.Duration, error) {
	u, err := netnstest.UsageOf(d.Pid())
	return u.Processor + u.Children, err
}

// hold compares with the targets, if asked to.
func (f *figures) hold(t *testing.T) {
	if os.Getenv(envTargets) != "1" || len(f.quiet) == 0 || len(f.stressed) == 0 {
		return
	}
	target := f.target
	if target == 0 {
		target = quantile(f.quiet, 99)*3/2 + f.slack()
	}
	if got := quantile(f.stressed, 99); got > target {
		t.Errorf("p99 under stress %v, want at most %v", round(got), round(target))
	}
	if f.variant == nftables && f.services <= 10_000 && f.idleFull > 300*time.Millisecond {
		t.Errorf("idle: %v of processor a minute, want at most 0.3 s", round(f.idleFull))
	}
	if f.peakStressed*10 > f.peakQuiet*12 {
		t.Errorf("memory: %d MiB at the peak, want at most 1.2 times %d", f.peakStressed, f.peakQuiet)
	}
}

// quantile returns the least of sorted times that a percentage does not exceed.
func quantile(sorted []time.Duration, percent int) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[(len(sorted)*percent+99)/100-1]
}

// table shows all figures, those under stress beside those in peace.
func table(rows []*figures) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "tables\tservices\tp50 quiet\tstress\tp99 quiet\tstress\tratio\tmax quiet\tstress\tsamples\tCPU s/min idle\tfull\tMiB peak quiet\tstress\tentries\twrites\t")
	for _, f := range rows {
		p99, stressed := quantile(f.quiet, 99), quantile(f.stressed, 99)
		ratio := stressed.Seconds() / max(p99, 1).Seconds()
		fmt.Fprintf(w, "%s\t%d\t", f.variant.tables(), f.services)
		fmt.Fprintf(w, "%v\t%v\t%v\t%v\t%.1f\t", round(quantile(f.quiet, 50)), round(quantile(f.stressed, 50)), round(p99), round(stressed), ratio)
		fmt.Fprintf(w, "%v\t%v\t%d+%d\t", round(quantile(f.quiet, 100)), round(quantile(f.stressed, 100)), len(f.quiet), len(f.stressed))
		fmt.Fprintf(w, "%.2f\t%.2f\t%d\t%d\t%d\t%d\t\n", f.idle.Seconds(), f.idleFull.Seconds(), f.peakQuiet, f.peakStressed, f.entriesMade, f.writesBeside)
	}
	w.Flush()
	return b.String()
}
