//go:build bench

package healthcheck

import (
	"bufio"
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"runtime/metrics"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/source"
)

// BenchmarkTCP asks 10,000 endpoints each five seconds by connecting, and reports what
// this costs one core: in this process (user), and in the kernel for it (system). It
// takes b.N seconds: -benchtime 20x. The endpoints are another process.
func BenchmarkTCP(b *testing.B) {
	at := server(b)
	c := NewChecker(Config{Report: func(Question, Result) {}})
	check := &source.HealthCheck{Type: source.CheckTCP, Interval: 5 * time.Second, IntervalDown: 5 * time.Second, Timeout: 2 * time.Second, Rise: 2, Fall: 3}
	for i := range 10_000 {
		svc := &source.Service{HealthCheck: check, Ports: []source.Port{{TargetPort: at.Port()}}}
		addr := netip.AddrFrom4([4]byte{127, 1, byte(i >> 8), byte(i)})
		q := Ask(svc, &source.Endpoint{Addr: addr})
		q.At = netip.AddrPortFrom(addr, at.Port())
		c.Watch(q, check, Result{})
	}
	ctx, cancel := context.WithCancel(b.Context())
	ended := make(chan error)
	go func() { ended <- c.Run(ctx) }()
	time.Sleep(6 * time.Second) // all have been asked once
	probes, user, system, cpu := c.counted(b), usage(true), usage(false), goCPU()
	b.ResetTimer()
	time.Sleep(time.Duration(b.N) * time.Second)
	b.StopTimer()
	n := float64(c.counted(b) - probes)
	seconds := float64(b.N)
	b.ReportMetric(n/seconds, "probes/s")
	b.ReportMetric(float64(usage(true)-user)/n/1000, "user-µs/probe")
	b.ReportMetric(float64(usage(false)-system)/n/1000, "system-µs/probe")
	b.ReportMetric((usage(true)-user).Seconds()/seconds*100, "%user")
	b.ReportMetric((goCPU()-cpu)/seconds*100, "%gc")
	cancel()
	<-ended
	c.answers.DeletePartialMatch(prometheus.Labels{"outcome": "passed"})
	if n := c.counted(b); n > 0 {
		b.Errorf("%d probes did not pass", n)
	}
}

func usage(user bool) time.Duration {
	var u syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	if user {
		return time.Duration(u.Utime.Nano())
	}
	return time.Duration(u.Stime.Nano())
}

// goCPU returns the seconds of processors that the garbage collector took.
func goCPU() float64 {
	s := []metrics.Sample{{Name: "/cpu/classes/gc/total:cpu-seconds"}}
	metrics.Read(s)
	return s[0].Value.Float64()
}

// server starts the program of this test once more, as all endpoints.
func server(b testing.TB) netip.AddrPort {
	cmd := exec.Command(os.Args[0], "-test.run", "^$")
	cmd.Env = append(os.Environ(), endpoints+"=1")
	out, err := cmd.StdoutPipe()
	fatal.If(b, err)
	fatal.If(b, cmd.Start())
	b.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	fatal.If(b, err)
	var text string
	fmt.Sscan(line, &text)
	return netip.MustParseAddrPort(text)
}
