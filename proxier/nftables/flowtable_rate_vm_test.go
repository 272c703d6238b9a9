//go:build bench && netns && vm

package nftables_test

import (
	"context"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/proxier/nftables"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// The short way costs less of a processor than the usual one. Rounds with and without a flow table
// take turns, in each of which a TCP connection sends as much as it can; the medians are compared.
// docs/modes.md has the ratio.
func TestFlowtableRate(t *testing.T) {
	r := newRouter(t, policy.IPv4)
	var opts nftables.Options
	r.Open = func() (*nftables.Backend, error) { return nftables.New(context.Background(), r.Family, opts) }
	r.smallPackets()
	var arrived atomic.Int64
	r.drain(&arrived)
	r.Put(r.service(source.TCP, r.endpoint))
	rates := map[bool][]float64{}
	for i := range 2 * 15 {
		on := i%2 == 0
		if opts = (nftables.Options{}); on {
			opts.Flowtable = []string{"to-client", "to-server"}
		}
		r.Restart()
		r.Sync(nil)
		rates[on] = append(rates[on], r.rate(&arrived))
	}
	for _, list := range rates {
		slices.Sort(list)
	}
	with, without := rates[true], rates[false]
	ratio := with[len(with)/2] / without[len(without)/2]
	t.Logf("packets per second of CPU: %.0f with a flow table, %.0f without: %.2f (%.0f, %.0f)", with[len(with)/2], without[len(without)/2], ratio, with, without)
	if ratio < 1 {
		t.Errorf("packets in the flow table cost %.2f of what others cost", 1/ratio)
	}
}

// drain has the endpoint read and count what it gets.
func (r *router) drain(arrived *atomic.Int64) {
	r.Helper()
	r.In(r.server, func() {
		l, err := net.Listen("tcp", r.endpoint.String())
		r.Must(err)
		r.Cleanup(func() { l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go count(c, arrived)
			}
		}()
	})
}

func count(c net.Conn, arrived *atomic.Int64) {
	defer c.Close()
	b := make([]byte, 1<<18)
	for {
		n, err := c.Read(b)
		arrived.Add(int64(n))
		if err != nil {
			return
		}
	}
}

// segment is how much data a packet has: little, as the cost is of packets, and not of bytes.
const segment = 256 - 12 // a timestamp takes 12

// smallPackets has the client send that, each packet by itself.
func (r *router) smallPackets() {
	r.Helper()
	run(r, "ip", "-n", r.client, "link", "set", "eth0", "gso_max_segs", "1")
	run(r, "ip", "-n", r.server, "route", "change", "default", "via", "10.2.0.1", "advmss", "256")
}

// busy returns for how long the processors of this machine have not been idle.
func busy(t testing.TB) (d time.Duration) {
	t.Helper()
	text, err := os.ReadFile("/proc/stat")
	fatal.If(t, err)
	line, _, _ := strings.Cut(string(text), "\n")
	for i, word := range strings.Fields(line)[1:8] {
		n, err := strconv.Atoi(word)
		fatal.If(t, err)
		if i != 3 && i != 4 { // idle, and waiting for disks
			d += time.Duration(n) * 10 * time.Millisecond // USER_HZ is 100
		}
	}
	return d
}

// rate returns how many packets reach the endpoint in a second of the time of the processors.
func (r *router) rate(arrived *atomic.Int64) float64 {
	r.Helper()
	c := r.open("tcp", r.vip)
	defer c.Close()
	b := make([]byte, 100*segment)
	from, began := arrived.Load(), busy(r)
	for end := time.Now().Add(pace.Scale(500 * time.Millisecond)); time.Now().Before(end); {
		c.SetDeadline(patience())
		_, err := c.Write(b)
		r.Must(err)
	}
	return float64(arrived.Load()-from) / segment / (busy(r) - began).Seconds()
}
