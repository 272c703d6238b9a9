//go:build netns

package conntrack_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	timo "github.com/ti-mo/conntrack"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/netutil/conntrack"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// namespace moves the test into a network namespace of its own, which ends with
// the test's thread, and runs commands there.
func namespace(t testing.TB, commands string) {
	t.Helper()
	runtime.LockOSThread()
	fatal.If(t, unix.Unshare(unix.CLONE_NEWNET))
	for line := range strings.Lines(commands) {
		args := strings.Fields(line)
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", line, err, out)
		}
	}
}

// enter moves a test into the namespace of another one's thread.
func enter(t testing.TB, thread int) {
	t.Helper()
	runtime.LockOSThread()
	f, err := os.Open(fmt.Sprintf("/proc/self/task/%d/ns/net", thread))
	fatal.If(t, err)
	defer f.Close()
	fatal.If(t, unix.Setns(int(f.Fd()), unix.CLONE_NEWNET))
}

// dial sends one datagram and returns where from and a function that sends another.
func dial(t *testing.T, network, to string) netip.AddrPort {
	t.Helper()
	c, err := net.Dial(network, to)
	fatal.If(t, err)
	t.Cleanup(func() { c.Close() })
	if network[:3] == "udp" {
		if _, err := c.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	return netip.MustParseAddrPort(c.LocalAddr().String())
}

// flows lists all UDP flows, without removing any.
func flows(t *testing.T, ipv6 bool) []string {
	t.Helper()
	var all []string
	n, err := conntrack.Prune(t.Context(), ipv6, conntrack.Query{}, func(f conntrack.Flow) conntrack.Verdict {
		all = append(all, fmt.Sprint(f.Src, " ", f.Dst, " ", f.Reply))
		return conntrack.Keep
	})
	if n != 0 || err != nil {
		t.Fatalf("Prune of nothing = %d, %v; want 0, nil", n, err)
	}
	slices.Sort(all)
	return all
}

func expect(t *testing.T, when string, got []string, want ...string) {
	t.Helper()
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("%s: flows\n got: %q\nwant: %q", when, got, want)
	}
}

func TestPrune(t *testing.T) {
	namespace(t, `ip link set lo up
ip route add 10.96.0.0/24 dev lo src 127.0.0.1
iptables -w -t raw -A OUTPUT -p udp --dport 55 -j CT --zone 7
iptables -w -t nat -A OUTPUT -d 10.96.0.1 -p udp --dport 53 -j DNAT --to-destination 127.0.0.1:5353
iptables -w -t nat -A OUTPUT -d 10.96.0.1 -p udp --dport 54 -j DNAT --to-destination 127.0.0.1:5454
iptables -w -t nat -A OUTPUT -d 10.96.0.1 -p udp --dport 55 -j DNAT --to-destination 127.0.0.1:5555
ip6tables -w -t nat -A OUTPUT -p udp --dport 53 -j DNAT --to-destination [::1]:5353
`)
	tcp, err := net.Listen("tcp", "127.0.0.1:5353") // same address and port, another protocol
	fatal.If(t, err)
	defer tcp.Close()
	dial(t, "tcp", "127.0.0.1:5353")

	a := dial(t, "udp", "10.96.0.1:53")
	b := dial(t, "udp", "10.96.0.1:54")
	z := dial(t, "udp", "10.96.0.1:55") // in zone 7
	plain := dial(t, "udp", "127.0.0.1:9")
	six := dial(t, "udp6", "[::1]:53")

	flowA := fmt.Sprint(a, " 10.96.0.1:53 127.0.0.1:5353")
	flowB := fmt.Sprint(b, " 10.96.0.1:54 127.0.0.1:5454")
	flowZ := fmt.Sprint(z, " 10.96.0.1:55 127.0.0.1:5555")
	flowPlain := fmt.Sprint(plain, " 127.0.0.1:9 127.0.0.1:9")
	flow6 := fmt.Sprint(six, " [::1]:53 [::1]:5353")
	expect(t, "at first", flows(t, false), flowA, flowB, flowZ, flowPlain)
	expect(t, "at first, IPv6", flows(t, true), flow6)

	gone := []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:5353"), netip.MustParseAddrPort("127.0.0.1:5555")}
	stale := func(f conntrack.Flow) conntrack.Verdict {
		if slices.Contains(gone, f.Reply) {
			return conntrack.Remove
		}
		return conntrack.Keep
	}
	if n, err := conntrack.Prune(t.Context(), false, conntrack.Query{}, stale); n != 2 || err != nil {
		t.Errorf("Prune = %d, %v; want 2, nil", n, err)
	}
	expect(t, "after", flows(t, false), flowB, flowPlain)
	expect(t, "after, IPv6", flows(t, true), flow6)
	if out, err := exec.Command("conntrack", "-L", "-p", "tcp").Output(); err != nil || !strings.Contains(string(out), "dport=5353") {
		t.Errorf("the TCP flow is gone: %v\n%s", err, out)
	}

	if n, err := conntrack.Prune(t.Context(), true, conntrack.Query{}, func(conntrack.Flow) conntrack.Verdict { return conntrack.Remove }); n != 1 || err != nil {
		t.Errorf("Prune of IPv6 = %d, %v; want 1, nil", n, err)
	}
	expect(t, "after all of IPv6", flows(t, true))
}

// A pruneFunc is Prune, or what it does on a kernel that cannot filter.
type pruneFunc func(context.Context, bool, conntrack.Query, func(conntrack.Flow) conntrack.Verdict) (int, error)

var pruneFuncs = map[string]pruneFunc{
	"few entries": conntrack.Prune, "many entries": conntrack.PruneManyEntries, "not filtered": conntrack.PruneUnfiltered,
}

// A kernel that filters and one that does not, and tables of any size, lead to the same.
func TestPruneQuery(t *testing.T) {
	namespace(t, `ip link set lo up
ip route add 10.96.0.0/24 dev lo src 127.0.0.1
ip -6 addr add fd00::1/128 dev lo nodad
ip -6 addr add fd00::2/128 dev lo nodad
iptables -w -t raw -A OUTPUT -p udp --dport 55 -j CT --zone-orig 7
iptables -w -t nat -A OUTPUT -d 10.96.0.1 -p udp -j DNAT --to-destination 127.0.0.1:5353
ip6tables -w -t nat -A OUTPUT -d fd00::1 -p udp -j DNAT --to-destination [fd00::2]:5353
`)
	tests := []struct {
		name string
		ipv6 bool
		send []string // to each of these; the name is also what the flow is called
		to   []string
		from string // the flow that was sent to this
		want []string
	}{
		{"one", false, []string{"10.96.0.1:53", "10.96.0.1:54", "127.0.0.1:53"}, []string{"10.96.0.1:53"}, "", []string{"10.96.0.1:53"}},
		{"one that is not there", false, []string{"10.96.0.1:53"}, []string{"10.96.0.2:53"}, "", nil},
		{"in a zone of one direction", false, []string{"10.96.0.1:53", "10.96.0.1:55"}, []string{"10.96.0.1:55"}, "", []string{"10.96.0.1:55"}},
		{"from", false, []string{"10.96.0.1:53", "10.96.0.1:54"}, nil, "10.96.0.1:54", []string{"10.96.0.1:54"}},
		{"from and to", false, []string{"10.96.0.1:53", "10.96.0.1:54", "10.96.0.1:55"}, []string{"10.96.0.1:55"}, "10.96.0.1:54", []string{"10.96.0.1:54", "10.96.0.1:55"}},
		{"from and to the same flow", false, []string{"10.96.0.1:53"}, []string{"10.96.0.1:53"}, "10.96.0.1:53", []string{"10.96.0.1:53"}},
		{"more than a walk each", false,
			[]string{"10.96.0.1:1", "10.96.0.1:2", "10.96.0.1:3", "10.96.0.1:4", "10.96.0.1:5", "10.96.0.1:6", "10.96.0.1:7"},
			[]string{"10.96.0.1:1", "10.96.0.1:2", "10.96.0.1:3", "10.96.0.1:4", "10.96.0.1:5"}, "10.96.0.1:7",
			[]string{"10.96.0.1:1", "10.96.0.1:2", "10.96.0.1:3", "10.96.0.1:4", "10.96.0.1:5", "10.96.0.1:7"}},
		{"IPv6", true, []string{"[fd00::1]:53", "[fd00::1]:54", "[fd00::2]:53"}, []string{"[fd00::1]:53"}, "[fd00::2]:53", []string{"[fd00::1]:53", "[fd00::2]:53"}},
		{"all", false, []string{"10.96.0.1:53", "127.0.0.1:53"}, nil, "", []string{"10.96.0.1:53", "127.0.0.1:53"}},
	}
	space := unix.Gettid() // the tests below run in threads of their own
	for _, tt := range tests {
		for how, prune := range pruneFuncs {
			t.Run(tt.name+", "+how, func(t *testing.T) {
				enter(t, space)
				if _, err := prune(t.Context(), tt.ipv6, conntrack.Query{}, func(conntrack.Flow) conntrack.Verdict { return conntrack.Remove }); err != nil {
					t.Fatal(err)
				}
				var q conntrack.Query
				for _, to := range tt.send {
					if from := dial(t, "udp", to); to == tt.from {
						q.From = append(q.From, from)
					}
				}
				for _, to := range tt.to {
					q.To = append(q.To, netip.MustParseAddrPort(to))
				}
				var seen []string
				n, err := prune(t.Context(), tt.ipv6, q, func(f conntrack.Flow) conntrack.Verdict {
					if !slices.Contains(seen, f.Dst.String()) {
						seen = append(seen, f.Dst.String())
					}
					return conntrack.Remove
				})
				expect(t, "judged", sorted(seen), tt.want...)
				if err != nil || n != len(tt.want) || len(flows(t, tt.ipv6)) != len(tt.send)-n {
					t.Errorf("removed %d, %v; left %q, want %d of %d removed", n, err, flows(t, tt.ipv6), len(tt.want), len(tt.send))
				}
			})
		}
	}
}

func sorted(list []string) []string { slices.Sort(list); return list }

// Connections of one protocol are found by where their replies come from, and others live on.
func TestPruneAt(t *testing.T) {
	namespace(t, `ip link set lo up
ip route add 10.96.0.0/24 dev lo src 127.0.0.1
ip -6 addr add fd00::1/128 dev lo nodad
iptables -w -t nat -A OUTPUT -d 10.96.0.1 -p tcp --dport 80 -j DNAT --to-destination 127.0.0.1:8080
iptables -w -t nat -A OUTPUT -d 10.96.0.1 -p tcp --dport 81 -j DNAT --to-destination 127.0.0.1:8081
iptables -w -t nat -A OUTPUT -d 10.96.0.1 -p udp -j DNAT --to-destination 127.0.0.1:8080
ip6tables -w -t nat -A OUTPUT -d fd00::1 -p tcp --dport 80 -j DNAT --to-destination [::1]:8080
ip6tables -w -t nat -A OUTPUT -d fd00::1 -p tcp --dport 81 -j DNAT --to-destination [::1]:8081
`)
	at := func(text string) netip.AddrPort { return netip.MustParseAddrPort(text) }
	one, other, one6 := at("127.0.0.1:8080"), at("127.0.0.1:8081"), at("[::1]:8080")
	vip, vip2, vip6 := at("10.96.0.1:80"), at("10.96.0.1:81"), at("[fd00::1]:80")
	far := []netip.AddrPort{at("10.9.0.1:1"), at("10.9.0.2:1"), at("10.9.0.3:1"), at("10.9.0.4:1")}
	for _, on := range []string{"127.0.0.1:8080", "127.0.0.1:8081", "[::1]:8080", "[::1]:8081"} {
		l, err := net.Listen("tcp", on)
		fatal.If(t, err)
		defer l.Close()
	}
	space := unix.Gettid()
	for _, tt := range []struct {
		name string
		q    conntrack.Query
		ipv6 bool
		want string
	}{
		{"one endpoint", conntrack.Query{At: []netip.AddrPort{one}}, false, "[10.96.0.1:80 127.0.0.1:8080]"},
		{"and where it was sent to", conntrack.Query{To: []netip.AddrPort{vip, vip2}, At: []netip.AddrPort{one}}, false, "[10.96.0.1:80 127.0.0.1:8080]"},
		{"more endpoints than places", conntrack.Query{To: []netip.AddrPort{vip}, At: []netip.AddrPort{one, other}}, false, "[10.96.0.1:80 127.0.0.1:8080]"},
		{"more endpoints than walks", conntrack.Query{At: append(slices.Clone(far), one)}, false, "[10.96.0.1:80 127.0.0.1:8080]"},
		{"elsewhere", conntrack.Query{To: []netip.AddrPort{vip2}, At: []netip.AddrPort{one}}, false, "[]"},
		{"IPv6", conntrack.Query{To: []netip.AddrPort{vip6, at("[fd00::1]:81")}, At: []netip.AddrPort{one6}}, true, "[[fd00::1]:80 [::1]:8080]"},
	} {
		for how, prune := range pruneFuncs {
			t.Run(tt.name+", "+how, func(t *testing.T) {
				enter(t, space)
				tt.q.Protocol = unix.IPPROTO_TCP
				for _, to := range []string{"10.96.0.1:80", "10.96.0.1:81", "[fd00::1]:80", "[fd00::1]:81"} {
					dial(t, "tcp", to)
				}
				dial(t, "udp", "10.96.0.1:80")
				var judged []string
				_, err := prune(t.Context(), tt.ipv6, tt.q, func(f conntrack.Flow) conntrack.Verdict {
					if text := fmt.Sprint(f.Dst, " ", f.Reply); !slices.Contains(judged, text) {
						judged = append(judged, text)
					}
					return conntrack.Remove
				})
				if got := fmt.Sprint(judged); got != tt.want || err != nil {
					t.Errorf("judged %s, %v; want %s", got, err, tt.want)
				}
				left, err := conntrack.Prune(t.Context(), tt.ipv6, conntrack.Query{Protocol: unix.IPPROTO_TCP}, func(conntrack.Flow) conntrack.Verdict { return conntrack.Remove })
				if want := 2 - len(judged); err != nil || left < want {
					t.Errorf("%d connections left, %v; want %d", left, err, want)
				}
			})
		}
	}
}

// Removing goes by batches, past what others remove meanwhile.
func TestPruneMany(t *testing.T) {
	namespace(t, "ip link set lo up")
	const many, foreign = 1000, 250
	c, err := timo.Dial(nil)
	fatal.If(t, err)
	defer c.Close()
	vip := netip.MustParseAddr("10.96.0.1")
	at := func(i int) timo.Flow {
		return timo.NewFlow(unix.IPPROTO_UDP, 0, netip.MustParseAddr("192.0.2.1"), vip, uint16(1024+i), 53, 300, 0)
	}
	for i := range many {
		fatal.If(t, c.Create(at(i)))
	}
	judged := 0
	q := conntrack.Query{To: []netip.AddrPort{netip.AddrPortFrom(vip, 53)}}
	n, err := conntrack.Prune(t.Context(), false, q, func(f conntrack.Flow) conntrack.Verdict {
		if i := int(f.Src.Port()) - 1024; i%(many/foreign) == 0 {
			if err := c.Delete(at(i)); err != nil {
				t.Error(err)
			}
		}
		judged++
		return conntrack.Remove
	})
	if err != nil || n != many-foreign || judged < many {
		t.Errorf("removed %d of %d judged, %v; want %d", n, judged, err, many-foreign)
	}
	expect(t, "after", flows(t, false))
}

// A client that connects again between the listing and us has a new entry. It has the addresses and, where the
// kernel gives it the memory of the old one, the ID that were listed, but leads elsewhere: it stays.
func TestPruneReplaced(t *testing.T) {
	namespace(t, "ip link set lo up")
	c, err := timo.Dial(nil)
	fatal.If(t, err)
	defer c.Close()
	const most = 1000
	sameID := 0
	for range most {
		f := timo.NewFlow(unix.IPPROTO_UDP, 0, netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("10.96.0.1"), 1024, 53, 300, 0)
		replace := func(server string) timo.Flow {
			f.TupleReply.IP.SourceAddress = netip.MustParseAddr(server)
			fatal.If(t, c.Create(f))
			got, err := c.Get(f)
			fatal.If(t, err)
			return got
		}
		before := replace("192.0.2.11")
		n, err := conntrack.Prune(t.Context(), false, conntrack.Query{}, func(got conntrack.Flow) conntrack.Verdict {
			if got.Reply.Addr() != before.TupleReply.IP.SourceAddress {
				return conntrack.Keep
			}
			fatal.If(t, c.Delete(f))
			if replace("192.0.2.12").ID == before.ID {
				sameID++
			}
			return conntrack.Remove
		})
		if n != 0 || err != nil {
			t.Fatalf("Prune = %d, %v; want 0, nil", n, err)
		}
		if err := c.Delete(f); err != nil {
			t.Fatalf("removing the new entry, of which %d had the ID of the old one: %v", sameID, err)
		}
		if sameID == 10 {
			break
		}
	}
	t.Logf("%d new entries had the ID of the old one", sameID)
}

// A flow that another process removes between the listing and us is no error and not counted.
func TestPruneGone(t *testing.T) {
	namespace(t, `ip link set lo up
iptables -w -t nat -A OUTPUT -p udp --dport 53 -j DNAT --to-destination 127.0.0.1:5353
`)
	dial(t, "udp", "127.0.0.1:53")
	n, err := conntrack.Prune(t.Context(), false, conntrack.Query{}, func(conntrack.Flow) conntrack.Verdict {
		if out, err := exec.Command("conntrack", "-F").CombinedOutput(); err != nil {
			t.Fatalf("conntrack -F: %v\n%s", err, out)
		}
		return conntrack.Remove
	})
	if n != 0 || err != nil {
		t.Errorf("Prune = %d, %v; want 0, nil", n, err)
	}
}

func TestPruneContext(t *testing.T) {
	namespace(t, `ip link set lo up
iptables -w -t nat -A OUTPUT -p udp --dport 53 -j DNAT --to-destination 127.0.0.1:5353
`)
	dial(t, "udp", "127.0.0.1:53")
	dial(t, "udp", "127.0.0.1:53")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	n, err := conntrack.Prune(ctx, false, conntrack.Query{}, func(conntrack.Flow) conntrack.Verdict {
		cancel()
		time.Sleep(50 * time.Millisecond) // until the socket is closed
		return conntrack.Remove
	})
	if n != 0 || !errors.Is(err, context.Canceled) {
		t.Errorf("Prune that is cancelled between two flows = %d, %v; want 0, context canceled", n, err)
	}
	if n, err := conntrack.Prune(ctx, false, conntrack.Query{}, nil); n != 0 || !errors.Is(err, context.Canceled) {
		t.Errorf("Prune after cancel = %d, %v; want 0, context canceled", n, err)
	}
	expect(t, "after", flows(t, false), flows(t, false)...)
	if len(flows(t, false)) != 2 {
		t.Errorf("after: %d flows; want 2", len(flows(t, false)))
	}
}
