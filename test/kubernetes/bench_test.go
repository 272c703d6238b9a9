//go:build netns

package kubernetes

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	core "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"svcproxy.dev/svcproxy/netutil/netnstest"
)

// The size of the comparison.
const (
	benchServices  = 10_000
	benchEndpoints = 10 // of each
)

// settling is how long a program is left alone before its memory is measured: the
// runtime of Go collects garbage every 2 minutes at the latest.
const settling = 130 * time.Second

// TestBench compares the memory of svcproxy and kube-proxy that hold the same
// services, one after the other on one host, and prints the parts of svcproxy's
// first sync.
func TestBench(t *testing.T) {
	n := newNode(t)
	n.example("rbac.yaml")
	n.put(thisNode())
	begin := time.Now()
	n.fill(t)
	t.Logf("%d services of %d endpoints created in %v", benchServices, benchEndpoints, time.Since(begin).Round(time.Second))

	ours := n.measureSvcproxy(t)
	theirs := n.measureKubeProxy(t)
	t.Logf("resident MiB: svcproxy %d (peak %d), kube-proxy %d (peak %d): %.0f %%",
		ours.now>>20, ours.peak>>20, theirs.now>>20, theirs.peak>>20, 100*float64(ours.now)/float64(theirs.now))
	if ours.now*2 > theirs.now {
		t.Error("svcproxy takes more than half of kube-proxy's memory")
	}
}

// fill creates the services.
func (n *node) fill(t *testing.T) {
	var g errgroup.Group
	g.SetLimit(8)
	ctx := context.Background()
	for i := range benchServices {
		g.Go(func() error {
			name := fmt.Sprintf("s%d", i)
			s := service(name, fmt.Sprintf("10.96.%d.%d", 20+i/250, 1+i%250))
			if _, err := n.client.CoreV1().Services("default").Create(ctx, s, meta.CreateOptions{}); err != nil {
				return err
			}
			_, err := n.client.DiscoveryV1().EndpointSlices("default").Create(ctx, benchSlice(i), meta.CreateOptions{})
			return err
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
}

// benchSlice is as the controller of Kubernetes makes them.
func benchSlice(i int) *discovery.EndpointSlice {
	s := slice(fmt.Sprintf("s%d-abcde", i), fmt.Sprintf("s%d", i))
	s.Labels["endpointslice.kubernetes.io/managed-by"] = "endpointslice-controller.k8s.io"
	for j := range benchEndpoints {
		e := i*benchEndpoints + j
		s.Endpoints = append(s.Endpoints, discovery.Endpoint{
			Addresses:  []string{fmt.Sprintf("10.%d.%d.%d", 128+e/62500, e/250%250, 1+e%250)},
			Conditions: discovery.EndpointConditions{Ready: ptr(true), Serving: ptr(true), Terminating: ptr(false)},
			NodeName:   ptr(fmt.Sprintf("node-%d", e%500)), Zone: ptr(fmt.Sprintf("zone-%d", e%3)),
			TargetRef: &core.ObjectReference{Kind: "Pod", Namespace: "default", Name: fmt.Sprintf("s%d-5d4f8c7b9-%05d", i, j), UID: "0b1b0c5e-0000-4000-8000-000000000000"},
		})
	}
	return s
}

func (n *node) measureSvcproxy(t *testing.T) memory {
	begin := time.Now()
	n.startSvcproxy(t, "nftables", `["kubernetes"]`)
	t.Logf("svcproxy ready after %v", time.Since(begin).Round(time.Millisecond))
	for _, line := range strings.Split(n.d.LogTail(100), "\n") {
		if strings.Contains(line, "listed everything") || strings.Contains(line, "first sync complete") {
			t.Log(line)
		}
	}
	time.Sleep(settling)
	m := memoryOf(t, n.d.Pid())
	if err := n.d.Stop(); err != nil {
		t.Fatal(err)
	}
	if _, err := n.d.Command("cleanup"); err != nil {
		t.Fatal(err)
	}
	return m
}

func (n *node) measureKubeProxy(t *testing.T) memory {
	begin := time.Now()
	p := n.startKubeProxy("nftables")
	t.Logf("kube-proxy synced after %v", time.Since(begin).Round(time.Millisecond))
	time.Sleep(settling)
	return memoryOf(t, p.Pid())
}

// memory is what a process has of the host's, in bytes.
type memory struct{ now, peak int }

func memoryOf(t *testing.T, pid int) (m memory) {
	t.Helper()
	var err error
	if m.now, m.peak, err = netnstest.Memory(pid); err != nil {
		t.Fatal(err)
	}
	return m
}
