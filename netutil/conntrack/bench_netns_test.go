//go:build netns

package conntrack_test

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"
	"time"

	timo "github.com/ti-mo/conntrack"
	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/netutil/conntrack"
)

// The kernel's default maximum, and ten services, of which each has a tenth of them.
const (
	benchFlows    = 250_000
	benchServices = 10
)

// BenchmarkPrune measures a look at one service, at one without flows and at
// all: time, processor time and garbage. Making the flows takes half a minute.
func BenchmarkPrune(b *testing.B) {
	namespace(b, "ip link set lo up")
	fill(b)
	service := func(i byte) netip.AddrPort { return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, 0, i}), 53) }
	for _, bb := range []struct {
		name  string
		query conntrack.Query
	}{
		{"one", conntrack.Query{To: []netip.AddrPort{service(1)}}},
		{"none", conntrack.Query{To: []netip.AddrPort{service(200)}}},
		{"at-one", conntrack.Query{At: []netip.AddrPort{service(1)}}},
		{"at-none", conntrack.Query{At: []netip.AddrPort{service(200)}}},
		{"all", conntrack.Query{}},
	} {
		b.Run(bb.name, func(b *testing.B) {
			enter(b, benchThread)
			seen := 0
			b.ReportAllocs()
			before := processorTime()
			for b.Loop() {
				n, err := conntrack.Prune(b.Context(), false, bb.query, func(conntrack.Flow) conntrack.Verdict { seen++; return conntrack.Keep })
				if n != 0 || err != nil {
					b.Fatal(n, err)
				}
			}
			b.ReportMetric(float64((processorTime()-before).Microseconds())/1000/float64(b.N), "ms-cpu/op")
			b.ReportMetric(float64(seen/b.N), "flows/op")
		})
	}
}

var benchThread int

func fill(b *testing.B) {
	benchThread = unix.Gettid()
	c, err := timo.Dial(nil)
	fatal.If(b, err)
	defer c.Close()
	for i := range benchFlows {
		f := timo.NewFlow(unix.IPPROTO_UDP, 0,
			netip.AddrFrom4([4]byte{172, 16, byte(i / 50_000), 1}), netip.AddrFrom4([4]byte{10, 96, 0, byte(i % benchServices)}),
			uint16(1024+i%50_000), 53, 3600, 0)
		fatal.If(b, c.Create(f))
	}
	runtime.GC()
}

// processorTime is what this process has used, in user mode and in the kernel.
func processorTime() time.Duration {
	var r unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// BenchmarkTranslated measures a listing of translated connections where there is none
// among many, as the kernel filters it.
func BenchmarkTranslated(b *testing.B) {
	namespace(b, "ip link set lo up")
	fill(b)
	b.ReportAllocs()
	before := processorTime()
	for b.Loop() {
		err := conntrack.List(b.Context(), false, conntrack.Filter{Translated: true}, func(c *conntrack.Connection) error {
			return fmt.Errorf("%v is translated", c)
		})
		fatal.If(b, err)
	}
	b.ReportMetric(float64((processorTime()-before).Microseconds())/1000/float64(b.N), "ms-cpu/op")
}
