//go:build bench

package bench

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/test/lab"
)

// fewServices are so few that the number of services cannot matter.
const fewServices = 10

// TestBench measures all variants. Each measure is a test of its own that can be
// run alone; nodes that several of them use are made by the first.
func TestBench(t *testing.T) {
	logMachine(t)
	t.Run("legacy", func(t *testing.T) {
		b := newBench(t, legacy, services)
		t.Run("first-sync", func(t *testing.T) { b.firstSync(t, services, 4) })
		t.Run("memory", b.memory)
		t.Run("connect", b.connect)
		t.Run("change", b.change)
		t.Run("resync", b.resync)
	})
	t.Run("nft", func(t *testing.T) {
		b := newBench(t, nft, services)
		t.Run("first-sync", func(t *testing.T) { b.firstSync(t, compared, 10) })
		t.Run("load", b.load)
		t.Run("memory", b.memory)
		t.Run("connect", b.connect)
		t.Run("change", b.change)
		t.Run("resync", b.resync)
	})
	t.Run("nftables", func(t *testing.T) {
		b := newBench(t, nftables, many)
		t.Run("first-load", func(t *testing.T) { b.firstLoad(t, services, 12) })
		t.Run("connect", b.connect)
		t.Run("change", b.changes)
		t.Run("resync", b.resync)
		t.Run("memory", b.memory) // last, for the peak of all that
		t.Run("stall", b.stall)
	})
	logMachine(t)
}

// A bench has the nodes of one variant that several measures use.
type bench struct {
	variant variant
	count   int                     // of all services
	large   func() (*daemon, error) // svcproxy with all services
	small   func() (*daemon, error) // svcproxy with fewServices
}

func newBench(t *testing.T, v variant, count int) *bench {
	b := &bench{variant: v, count: count}
	b.large = sync.OnceValues(func() (*daemon, error) { return newDaemon(t, v, makeServices(count)) })
	b.small = sync.OnceValues(func() (*daemon, error) { return newDaemon(t, v, makeServices(fewServices)) })
	return b
}

// newDaemon starts svcproxy on a fresh node.
func newDaemon(t *testing.T, v variant, all []lab.Service) (*daemon, error) {
	n, err := newNode(t, v)
	if err != nil {
		return nil, err
	}
	return startDaemon(t, n, all, lone(n.variant))
}

// get returns a node of a bench, or ends the test.
func get(t *testing.T, start func() (*daemon, error)) *daemon {
	t.Helper()
	d, err := start()
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// firstSync compares loading kube-proxy's layout into a fresh node with the first
// sync of svcproxy on another, by turns. The time of kube-proxy is that of iptables-restore alone.
func (b *bench) firstSync(t *testing.T, count int, promise float64) {
	kube, first, ready := b.loads(t, makeServices(count))
	atLeast(t, "first sync", median(kube), median(first), promise)
	t.Logf("process start to ready, the same ratio: %.2f", median(kube).Seconds()/median(ready).Seconds())
}

// loads returns how long kube-proxy's layout takes, the first sync of svcproxy, and
// svcproxy from the start of the process.
func (b *bench) loads(t *testing.T, all []lab.Service) (kube, first, ready []time.Duration) {
	t.Helper()
	for range loads {
		n, err := newNode(t, b.variant)
		if err != nil {
			t.Fatal(err)
		}
		took, err := n.loadKube(all)
		if err != nil {
			t.Fatal(err)
		}
		d, err := newDaemon(t, b.variant, all)
		if err != nil {
			t.Fatal(err)
		}
		if err := d.Kill(); err != nil {
			t.Fatal(err)
		}
		kube, first, ready = append(kube, took), append(first, d.first), append(ready, d.ready)
	}
	t.Logf("%d services of %d endpoints on %s", len(all), endpointsEach, b.variant.tables())
	t.Logf("kube-proxy's layout, the tool alone: %s", show(kube))
	t.Logf("svcproxy, first sync: %s", show(first))
	t.Logf("svcproxy, process start to ready: %s", show(ready))
	return kube, first, ready
}

// load shows how the first sync of svcproxy grows with the services.
func (b *bench) load(t *testing.T) {
	few, err := newDaemon(t, b.variant, makeServices(compared))
	if err != nil {
		t.Fatal(err)
	}
	many := get(t, b.large)
	t.Logf("%d services: first sync %v, process start to ready %v", compared, round(few.first), round(few.ready))
	t.Logf("%d services: first sync %v, process start to ready %v", services, round(many.first), round(many.ready))
	t.Logf("%.0f times the services: %.1f times the first sync", float64(services)/float64(compared), many.first.Seconds()/few.first.Seconds())
}

// memory shows the resident memory of the daemon.
func (b *bench) memory(t *testing.T) {
	now, peak, err := get(t, b.large).resident()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d services of %d endpoints: %d MiB resident, %d MiB at the peak", b.count, endpointsEach, now, peak)
	if b.variant == nftables && peak > maxResident {
		t.Errorf("%d MiB resident at the peak, promised at most %d", peak, maxResident)
	}
}

// connect compares connections to the last of all services with those to the last of 10.
func (b *bench) connect(t *testing.T) {
	large, small := get(t, b.large), get(t, b.small)
	targets := []*target{
		{what: fmt.Sprintf("the last of %d services", fewServices), from: small.node.Node, to: last(makeServices(fewServices))},
		{what: fmt.Sprintf("the last of %d services", b.count), from: large.node.Node, to: last(makeServices(b.count))},
	}
	if err := connectAll(targets, connects); err != nil {
		t.Fatal(err)
	}
	for _, to := range targets {
		t.Logf("connect to %s: p50 %v, %d connections", to.what, median(to.times), len(to.times))
	}
	atMost(t, "connect, p50", median(targets[1].times), median(targets[0].times), b.variant.connectRatio())
}

// change compares one changed endpoint with a change of one rule by iptables-restore, by turns, on the same tables.
func (b *bench) change(t *testing.T) {
	d := get(t, b.large)
	all := makeServices(services)
	var rule, sync, total []time.Duration
	for i := range changes {
		took, err := d.node.restoreOneRule(fmt.Sprint("change-", i))
		if err != nil {
			t.Fatal(err)
		}
		cost, err := d.changeEndpoint(all, i)
		if err != nil {
			t.Fatal(err)
		}
		rule, sync, total = append(rule, took), append(sync, cost.sync), append(total, cost.total)
	}
	changed(t, d)
	t.Logf("one of %d endpoints of one of %d services on %s", endpointsEach, services, b.variant.tables())
	t.Logf("iptables-restore --noflush of one rule: %s", show(rule))
	t.Logf("svcproxy, sync: %s", show(sync))
	t.Logf("svcproxy, rename of the file to end of sync: %s", show(total))
	atMost(t, "one change, sync", median(sync), median(rule), 1.5)
	t.Logf("one change, from the rename, the same ratio: %.2f", median(total).Seconds()/median(rule).Seconds())
}

// changeEndpoint gives the last service another first endpoint, the i-th that no service had.
func (d *daemon) changeEndpoint(all []lab.Service, i int) (change, error) {
	at := len(all) - 1
	all[at].Endpoints[0].Address = offset(spare, i)
	text, err := lab.File(all[at/perFile*perFile:]...)
	if err != nil {
		return change{}, err
	}
	return d.replace(fileName(at), text)
}

// changed checks that of the changes of the endpoint the last is in the kernel, and the one before is not any more.
func changed(t *testing.T, d *daemon) {
	t.Helper()
	rules, err := d.node.natRules()
	if err != nil {
		t.Fatal(err)
	}
	now, before := offset(spare, changes-1).String()+":", offset(spare, changes-2).String()+":"
	if !strings.Contains(rules, now) || strings.Contains(rules, before) {
		t.Errorf("after the changes the nat table has not just the last of them, %s", now)
	}
}

// resync shows what it costs to find that nothing has to be repaired.
func (b *bench) resync(t *testing.T) {
	d := get(t, b.large)
	var times []time.Duration
	for range loads {
		took, err := d.resync()
		if err != nil {
			t.Fatal(err)
		}
		times = append(times, took)
	}
	t.Logf("a resync of %d services that changes nothing: %s", b.count, show(times))
}
