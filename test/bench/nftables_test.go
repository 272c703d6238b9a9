//go:build bench

package bench

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/test/lab"
)

const maxResident = 1024 // MiB, with 1,000,000 endpoints

// connectRatio is how much longer than with few services a connection with all of them may take.
func (v variant) connectRatio() float64 {
	if v == nftables {
		return 1.1
	}
	return 1.15
}

// firstLoad holds the whole start of svcproxy, not only its first sync, to a promise.
func (b *bench) firstLoad(t *testing.T, count int, promise float64) {
	kube, first, ready := b.loads(t, makeServices(count))
	atLeast(t, "process start to ready", median(kube), median(ready), promise)
	t.Logf("first sync, the same ratio: %.2f", median(kube).Seconds()/median(first).Seconds())
	large := get(t, b.large)
	t.Logf("%d services of %d endpoints: first sync %v, process start to ready %v (promised 15s on a machine of 2 cores)",
		b.count, endpointsEach, round(large.first), round(large.ready))
}

// A kindOfChange is something that happens to the endpoints of a service.
type kindOfChange struct {
	name string
	do   func(*lab.Service, int)
}

// kindsOfChange follow each other over and over: a service keeps its size in the end.
var kindsOfChange = []kindOfChange{
	{name: "one added", do: func(s *lab.Service, i int) {
		s.Endpoints = append(s.Endpoints, lab.Endpoint{Address: offset(spare, 2*i)})
	}},
	{name: "one removed", do: func(s *lab.Service, i int) {
		s.Endpoints = s.Endpoints[:endpointsEach]
	}},
	{name: "one replaced", do: func(s *lab.Service, i int) {
		s.Endpoints[0].Address = offset(spare, 2*i+1)
	}},
}

// changeTimes are what changes of one kind took.
type changeTimes struct{ total, sync []time.Duration }

// changes compares changes of one endpoint of many services with the same of
// few, by turns, and with kube-proxy's layout.
func (b *bench) changes(t *testing.T) {
	few, err := newDaemon(t, b.variant, makeServices(compared))
	if err != nil {
		t.Fatal(err)
	}
	large := get(t, b.large)
	fewTimes, largeTimes := make([]changeTimes, len(kindsOfChange)), make([]changeTimes, len(kindsOfChange))
	for i := range changes {
		if err := few.changeEach(makeServices(compared), i, fewTimes); err != nil {
			t.Fatal(err)
		}
		if err := large.changeEach(makeServices(b.count), i, largeTimes); err != nil {
			t.Fatal(err)
		}
	}
	few.checkReplaced(t, compared)
	large.checkReplaced(t, b.count)
	kube := b.kubeChanges(t)
	t.Log("promised on an idle machine, medians: sync 1ms, from the rename 10ms")
	for k, kind := range kindsOfChange {
		a, z := fewTimes[k], largeTimes[k]
		t.Logf("%s, %d services: sync %s; from the rename %s", kind.name, compared, show(a.sync), show(a.total))
		t.Logf("%s, %d services: sync %s; from the rename %s", kind.name, b.count, show(z.sync), show(z.total))
		atMost(t, kind.name+", sync", median(z.sync), median(a.sync), 2)
		atMost(t, kind.name+", from the rename", median(z.total), median(a.total), 2)
		t.Logf("nft -f of one service in kube-proxy's layout of %d services to svcproxy with %d, from the rename: %.1f",
			services, b.count, median(kube).Seconds()/median(z.total).Seconds())
	}
}

// changeEach changes the last service in every way, and adds what each took.
func (d *daemon) changeEach(all []lab.Service, i int, times []changeTimes) error {
	s := &all[len(all)-1]
	if i > 0 {
		s.Endpoints[0].Address = offset(spare, 2*(i-1)+1)
	}
	for k, kind := range kindsOfChange {
		kind.do(s, i)
		text, err := lab.File(all[(len(all)-1)/perFile*perFile:]...)
		if err != nil {
			return err
		}
		cost, err := d.replace(fileName(len(all)-1), text)
		if err != nil {
			return fmt.Errorf("%s: %w", kind.name, err)
		}
		times[k].sync = append(times[k].sync, cost.sync)
		times[k].total = append(times[k].total, cost.total)
	}
	return nil
}

// checkReplaced checks that connections to the last service go to the endpoint
// that the last change put there, and to none of an earlier one.
func (d *daemon) checkReplaced(t *testing.T, count int) {
	t.Helper()
	at := last(makeServices(count))
	for range 6 { // that an endpoint of ten meets none of 300 is once in 10^13 runs
		if _, err := connectTimes(d.node.Node, at); err != nil {
			t.Fatal(err)
		}
	}
	seen, err := d.node.Node.Run("conntrack", "-L", "-d", at.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	now, before := fmt.Sprintf("src=%s ", offset(spare, 2*changes-1)), fmt.Sprintf("src=%s ", offset(spare, 2*changes-3))
	if !strings.Contains(seen, now) || strings.Contains(seen, before) {
		t.Errorf("connections to the last of %d services do not go where the last change says, to %s", count, now)
	}
}

// kubeChanges returns how long nft takes for the endpoints of one of all services in kube-proxy's layout.
func (b *bench) kubeChanges(t *testing.T) (times []time.Duration) {
	t.Helper()
	n, err := newNode(t, b.variant)
	if err != nil {
		t.Fatal(err)
	}
	all := makeServices(services)
	if _, err := n.loadKube(all); err != nil {
		t.Fatal(err)
	}
	for i := range changes {
		s := &all[len(all)-1]
		s.Endpoints[0].Address = offset(spare, i)
		took, err := n.kubeChangeOne(s)
		if err != nil {
			t.Fatal(err)
		}
		times = append(times, took)
	}
	t.Logf("one of %d services in kube-proxy's layout, nft -f of its chain: %s", services, show(times))
	return times
}
