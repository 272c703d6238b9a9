package daemon

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/cmd/internal/modes"
	"svcproxy.dev/svcproxy/cmd/internal/modes/modestest"
	"svcproxy.dev/svcproxy/internal/echotest"
	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/proxier/conditions"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// targets is a kernel that remembers the targets of one service at each sync.
type targets struct {
	kernel
	mu   sync.Mutex
	seen []string
}

func (k *targets) open(context.Context, policy.Family, modes.OpenConfig) (modes.Backend, error) {
	return k, nil
}

func (k *targets) Sync(ctx context.Context, st *policy.State, delta *policy.Delta) error {
	if svc := st.Services[source.Key{Namespace: "default", Name: "checked"}]; svc != nil {
		k.mu.Lock()
		var list []string
		for _, t := range svc.Pools[0].Targets {
			list = append(list, t.Addr().String())
		}
		k.seen = append(k.seen, strings.Join(list, " "))
		k.mu.Unlock()
	}
	return k.kernel.Sync(ctx, st, delta)
}

// last returns the targets now.
func (k *targets) last() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.seen) == 0 {
		return "none yet"
	}
	return k.seen[len(k.seen)-1]
}

// checked is a service with two endpoints at a port, that are asked often.
func checked(port uint16) source.Changes {
	ch := object("checked", "10.96.0.77")
	svc := ch.Set[0].Services[0]
	svc.Ports[0].TargetPort = port
	svc.HealthCheck = &source.HealthCheck{
		Type: source.CheckTCP, Interval: 20 * time.Millisecond, IntervalDown: 20 * time.Millisecond,
		Timeout: 10 * time.Second, Rise: 2, Fall: 2,
	}
	for _, a := range []string{"127.0.0.1", "127.0.0.2"} {
		svc.Endpoints = append(svc.Endpoints, source.Endpoint{Addr: netip.MustParseAddr(a), Weight: 1, Ready: true, Serving: true})
	}
	return ch
}

// listen accepts connections until it is closed.
func listen(t *testing.T, addr string) net.Listener {
	t.Helper()
	l, err := echotest.Listen(addr)
	fatal.If(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
		}
	}()
	return l
}

// An endpoint that does not answer leaves the kernel, is not in the first sync after a
// restart, and is back when it answers again.
func TestEndpointsAreChecked(t *testing.T) {
	f := withCluster(t)
	k := new(targets)
	r := launch(t, "http_address = \"\"\nsources = [\"kubernetes\"]\n", modestest.Stub("nftables", k.open))
	first := listen(t, "127.0.0.1:0")
	port := netip.MustParseAddrPort(first.Addr().String()).Port()
	second := listen(t, fmt.Sprintf("127.0.0.2:%d", port))
	apply := func(s source.Sink) {
		s.Apply(checked(port))
		s.Synced(kubernetesName)
	}
	f.steps <- apply
	r.ready()
	r.eventually("both up", func() bool {
		return strings.Count(r.log.String(), "endpoint up") == 2 && k.last() == "127.0.0.1 127.0.0.2"
	})
	_ = second.Close()
	r.eventually("one left", func() bool { return k.last() == "127.0.0.1" })
	if !strings.Contains(r.said(), fmt.Sprintf("msg=\"endpoint down\" service=default/checked endpoint=127.0.0.2:%d err=", port)) {
		t.Errorf("the log does not say so:\n%s", r.log)
	}
	fatal.If(t, r.stop())
	k.seen, r.told = nil, new(logged)
	r.start()
	f.steps <- apply
	r.ready()
	if k.mu.Lock(); slices.ContainsFunc(k.seen, func(s string) bool { return s != "127.0.0.1" }) {
		t.Errorf("after a restart it was in the kernel: %q", k.seen)
	}
	k.mu.Unlock()
	listen(t, fmt.Sprintf("127.0.0.2:%d", port))
	r.eventually("it is back", func() bool { return k.last() == "127.0.0.1 127.0.0.2" })
}

// That the state of endpoints cannot be kept is shown.
func TestConditionsThatCannotBeKept(t *testing.T) {
	f := withCluster(t)
	r := launch(t, "http_address = \"\"\nsources = [\"kubernetes\"]\n")
	file := filepath.Join(r.dir, "state", conditions.StateName)
	fatal.If(t, os.MkdirAll(filepath.Join(file, "in the way"), 0o755))
	f.steps <- func(s source.Sink) {
		s.Apply(checked(1))
		s.Synced(kubernetesName)
	}
	r.ready()
	r.eventually("told", func() bool {
		return strings.Contains(strings.Join(r.status().Warnings, "\n"), "a restart will not know the state of endpoints: ")
	})
}
