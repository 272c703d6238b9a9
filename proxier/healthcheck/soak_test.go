//go:build bench

package healthcheck

import (
	"context"
	"net/netip"
	"os"
	"runtime"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/source"
)

// Of the endpoints of the soak, one in ten refuses.
const (
	soaked      = 10_000
	refusing    = 10
	soakSamples = 60

	// underWay is how many probes a busy machine may have under way when descriptors are counted.
	// If one in ten thousand kept its own, an hour would leave 700.
	underWay = 200
)

// TestHour asks 10,000 endpoints each five seconds, for an hour with SVCPROXY_SOAK=1, and wants
// memory and descriptors as they were when all had been asked a few times, and no burst of
// probes at the start.
func TestHour(t *testing.T) {
	lasts := time.Minute
	if os.Getenv("SVCPROXY_SOAK") == "1" {
		lasts = time.Hour
	}
	at := server(t)
	c := NewChecker(Config{Report: func(Question, Result) {}})
	watchMany(c, at)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- c.Run(ctx) }()
	defer func() { cancel(); <-ended }()
	noBurst(t, c)
	time.Sleep(max(20*time.Second, lasts/6))
	heap, files := inUse(t)
	for range soakSamples {
		time.Sleep(lasts / soakSamples)
		h, f := inUse(t)
		if h > heap*5/4 || f > files+underWay {
			t.Errorf("%d KiB and %d descriptors in use, at first %d and %d", h>>10, f, heap>>10, files)
		}
	}
	h, f := inUse(t)
	t.Logf("%d probes; %d KiB and %d descriptors in use, at first %d and %d", c.counted(t), h>>10, f, heap>>10, files)
}

func watchMany(c *Checker, at netip.AddrPort) {
	check := &source.HealthCheck{Type: source.CheckTCP, Interval: 5 * time.Second, IntervalDown: 5 * time.Second, Timeout: 2 * time.Second, Rise: 2, Fall: 3}
	svc := &source.Service{HealthCheck: check, Ports: []source.Port{{TargetPort: at.Port()}}}
	refused := &source.Service{HealthCheck: check, Ports: []source.Port{{TargetPort: 1}}}
	for i := range soaked {
		of, addr := svc, netip.AddrFrom4([4]byte{127, 1, byte(i >> 8), byte(i)})
		if i%refusing == 0 {
			of = refused
		}
		c.Watch(Ask(of, &source.Endpoint{Addr: addr}), check, Result{})
	}
}

// noBurst wants the first answers spread: of each fifth of the interval no more than twice its share.
func noBurst(t *testing.T, c *Checker) {
	t.Helper()
	before := c.counted(t)
	for range 5 {
		time.Sleep(time.Second)
		now := c.counted(t)
		if n := now - before; n > 2*soaked/5 {
			t.Errorf("%d probes in a second, of %d in five", n, soaked)
		}
		before = now
	}
}

// inUse returns the bytes of the heap and the descriptors in use.
func inUse(t *testing.T) (heap uint64, files int) {
	t.Helper()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	list, err := os.ReadDir("/proc/self/fd")
	fatal.If(t, err)
	return m.HeapInuse, len(list)
}
