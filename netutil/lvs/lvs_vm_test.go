//go:build vm

package lvs

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/mdlayher/netlink"
	"github.com/moby/ipvs"
	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/netutil/internal/nlmsg"
	"svcproxy.dev/svcproxy/netutil/netnstest"
)

var (
	compareAddrs = cmp.Options{
		cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
		cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b }),
	}
	web  = Key{netip.MustParseAddr("10.96.0.10"), unix.IPPROTO_TCP, 80}
	web6 = Key{netip.MustParseAddr("fd00:96::10"), unix.IPPROTO_TCP, 80}
	dns  = Key{netip.MustParseAddr("10.96.0.53"), unix.IPPROTO_UDP, 53}
	sig  = Key{netip.MustParseAddr("10.96.0.77"), unix.IPPROTO_SCTP, 7}
	ntp  = Key{netip.MustParseAddr("10.96.0.53"), unix.IPPROTO_UDP, 123}

	first  = netip.MustParseAddrPort("192.168.10.11:8080")
	first6 = netip.MustParseAddrPort("[fd00::11]:8080")
)

func dial(t *testing.T) *Conn {
	t.Helper()
	netnstest.Enter(t)
	run(t, "ip link set lo up") // without any route the kernel knows no unicast address
	c, err := Dial(t.Context())
	fatal.If(t, err)
	t.Cleanup(func() { fatal.If(t, c.Close()) })
	return c
}

func run(t *testing.T, command string) string {
	t.Helper()
	words := strings.Fields(command)
	out, err := exec.Command(words[0], words[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", command, err, out)
	}
	return string(out)
}

// A listing is a virtual server with its destinations.
type listing struct {
	Server
	Destinations []Destination
}

func list(t *testing.T, c *Conn, v6 bool) map[Key]listing {
	t.Helper()
	servers, err := c.Servers(t.Context(), v6, noKeys)
	fatal.If(t, err)
	l := map[Key]listing{}
	for key, s := range servers {
		dests, err := c.Destinations(t.Context(), key)
		fatal.If(t, err)
		l[key] = listing{s, dests}
	}
	return l
}

// noKeys says that no virtual server is known.
func noKeys(func(Key) bool) {}

func wantList(t *testing.T, c *Conn, v6 bool, want map[Key]listing) {
	t.Helper()
	if diff := cmp.Diff(want, list(t, c, v6), compareAddrs); diff != "" {
		t.Errorf("listed (-want +got):\n%s", diff)
	}
}

func TestServersAreListedAsTheyWereMade(t *testing.T) {
	c := dial(t)
	servers := []Server{
		{Key: web, Scheduler: "wrr"},
		{Key: web6, Scheduler: "rr", Persistence: 10800},
		{Key: dns, Scheduler: "lc", Persistence: 1},
		{Key: sig, Scheduler: "mh", Flags: HashPort},
		{Key: ntp, Scheduler: "sh", Flags: FallBack, Persistence: 7, OnePacket: true},
	}
	for _, s := range servers {
		fatal.If(t, c.AddServer(t.Context(), s))
	}
	fatal.If(t, c.AddDestination(t.Context(), web, Destination{AddrPort: first, Weight: 65535}))
	limited := Destination{AddrPort: first6, Weight: 0, Limits: Limits{Upper: 1<<31 - 1, Lower: 10}}
	fatal.If(t, c.AddDestination(t.Context(), web6, limited))

	wantList(t, c, false, map[Key]listing{
		web: {servers[0], []Destination{{AddrPort: first, Weight: 65535}}},
		dns: {servers[2], []Destination{}},
		sig: {servers[3], []Destination{}},
		ntp: {servers[4], []Destination{}},
	})
	wantList(t, c, true, map[Key]listing{web6: {servers[1], []Destination{limited}}})
	if c.Messages != 7 {
		t.Errorf("%d messages for five servers and two destinations", c.Messages)
	}
}

func TestChangesAndRemovals(t *testing.T) {
	c := dial(t)
	ctx := t.Context()
	fatal.If(t, c.AddServer(ctx, Server{Key: web, Scheduler: "wrr"}))
	fatal.If(t, c.AddDestination(ctx, web, Destination{AddrPort: first, Weight: 1}))

	changed := Server{Key: web, Scheduler: "sh", Persistence: 60}
	fatal.If(t, c.UpdateServer(ctx, changed))
	fatal.If(t, c.UpdateDestination(ctx, web, Destination{AddrPort: first, Weight: 7}))
	wantList(t, c, false, map[Key]listing{web: {changed, []Destination{{AddrPort: first, Weight: 7}}}})

	for key, want := range map[Key]bool{web: true, web6: false, dns: false} {
		if got, err := c.Has(ctx, key); got != want || err != nil {
			t.Errorf("Has(%v) gave %v, %v", key, got, err)
		}
	}
	fatal.If(t, c.DeleteDestination(ctx, web, first))
	fatal.If(t, c.DeleteDestination(ctx, web, first)) // gone already
	wantList(t, c, false, map[Key]listing{web: {changed, []Destination{}}})
	fatal.If(t, c.DeleteServer(ctx, web))
	fatal.If(t, c.DeleteServer(ctx, web))
	fatal.If(t, c.DeleteDestination(ctx, web, first))
	wantList(t, c, false, map[Key]listing{})
}

// someKey returns one of many keys.
func someKey(i int) Key {
	return Key{netip.AddrFrom4([4]byte{10, 97, byte(i >> 8), byte(i)}), unix.IPPROTO_TCP, 80}
}

func addServers(t *testing.T, c *Conn, n int) {
	t.Helper()
	for i := range n {
		fatal.If(t, c.AddServer(t.Context(), Server{Key: someKey(i), Scheduler: "rr"}))
	}
}

// eachKey yields n keys.
func eachKey(n int) iter.Seq[Key] {
	return func(yield func(Key) bool) {
		for i := 0; i < n && yield(someKey(i)); i++ {
		}
	}
}

// Servers of another namespace that go between two pieces of a list tear it. What
// is known is found nevertheless.
func TestWhatATornListLeavesOutIsAskedFor(t *testing.T) {
	c := dial(t)
	const servers, others = 300, 100
	addServers(t, c, servers)
	var torn int
	for range 20 { // whether it is torn depends on where the kernel puts what the other removes
		if torn == 0 {
			torn = tear(t, c, servers, others)
		}
	}
	t.Logf("%d of %d servers were left out", torn, servers)
	if torn == 0 {
		t.Error("the list was whole: nothing was tried")
	}
}

// tear removes servers of another namespace while those of c are listed, and
// returns how many the list leaves out. All are found all the same.
func tear(t *testing.T, c *Conn, servers, others int) (torn int) {
	t.Run("another namespace", func(t *testing.T) {
		other := dial(t)
		addServers(t, other, others)
		nl, err := netlink.Dial(unix.NETLINK_GENERIC, nil)
		fatal.If(t, err)
		defer nl.Close()
		_, err = nl.Send(netlink.Message{ // has the kernel make the first piece
			Header: netlink.Header{Type: netlink.HeaderType(family.id), Flags: netlink.Request | netlink.Dump},
			Data:   []byte{cmdGetServer, 1, 0, 0},
		})
		fatal.If(t, err)
		for i := range others {
			fatal.If(t, other.DeleteServer(t.Context(), someKey(i)))
		}
		replies, err := nl.Receive()
		fatal.If(t, err)
		list := map[Key]Server{}
		for _, m := range replies {
			a := nlmsg.Find(m.Data[unix.GENL_HDRLEN:], attrServer, serverAddr)
			k := Key{netip.AddrFrom4([4]byte(a)), unix.IPPROTO_TCP, 80}
			list[k] = Server{Key: k}
		}
		torn = servers - len(list)
		fatal.If(t, c.complete(t.Context(), list, false, eachKey(servers+1)))
		if len(list) != servers {
			t.Errorf("%d of %d servers are found", len(list), servers)
		}
	})
	return torn
}

// What others change all the time, even in other namespaces, takes nothing that is
// known out of a list, and never makes it fail.
func TestListsAreWholeWhileOthersChange(t *testing.T) {
	c := dial(t)
	const servers, lists = 300, 100
	addServers(t, c, servers)
	t.Run("another namespace", func(t *testing.T) {
		other := dial(t)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(netnstest.Here(t, func() {
			for i := 0; ctx.Err() == nil; i++ { // now and then, as a proxy does
				add := other.AddServer(t.Context(), Server{Key: someKey(i % servers), Scheduler: "rr"})
				time.Sleep(10 * time.Millisecond)
				if err := errors.Join(add, other.DeleteServer(t.Context(), someKey(i%servers))); err != nil {
					t.Error(err)
				}
			}
		}))
		torn := 0
		for range lists {
			list, err := c.Servers(t.Context(), false, noKeys)
			fatal.If(t, err)
			if len(list) != servers {
				torn++
			}
			list, err = c.Servers(t.Context(), false, eachKey(servers))
			if err != nil || len(list) != servers {
				t.Errorf("%d of %d servers listed, error %v", len(list), servers, err)
			}
		}
		t.Logf("%d of %d lists were torn", torn, lists)
		cancel()
		wg.Wait()
	})
}

func TestRefusalsHaveNames(t *testing.T) {
	c := dial(t)
	ctx := t.Context()
	fatal.If(t, c.AddServer(ctx, Server{Key: web, Scheduler: "wrr"}))
	fatal.If(t, c.AddDestination(ctx, web, Destination{AddrPort: first, Weight: 1}))
	tests := []struct {
		what string
		err  error
		want error
	}{
		{"a server twice", c.AddServer(ctx, Server{Key: web, Scheduler: "wrr"}), ErrExist},
		{"a destination twice", c.AddDestination(ctx, web, Destination{AddrPort: first, Weight: 1}), ErrExist},
		{"a change of no server", c.UpdateServer(ctx, Server{Key: dns, Scheduler: "wrr"}), ErrNoServer},
		{"a destination of no server", c.AddDestination(ctx, dns, Destination{AddrPort: first, Weight: 1}), ErrNoServer},
		{"a destination that is no host", c.AddDestination(ctx, web, Destination{AddrPort: netip.MustParseAddrPort("255.255.255.255:80"), Weight: 1}), ErrNotUnicast},
		{"a change of no destination", c.UpdateDestination(ctx, web, Destination{AddrPort: netip.MustParseAddrPort("10.0.0.1:1"), Weight: 1}), ErrNotExist},
		{"an unknown scheduler", c.AddServer(ctx, Server{Key: dns, Scheduler: "nosuch"}), ErrNoScheduler},
		{"a change to an unknown scheduler", c.UpdateServer(ctx, Server{Key: web, Scheduler: "nosuch"}), ErrNoScheduler},
		{"a scheduler of 16 bytes and more", c.AddServer(ctx, Server{Key: dns, Scheduler: "longer-than-any-other"}), ErrRefused},
	}
	for _, tt := range tests {
		if !errors.Is(tt.err, tt.want) {
			t.Errorf("%s: %v, want %v", tt.what, tt.err, tt.want)
		}
	}
}

// What others set and we cannot say is noticed, and an update puts it right.
func TestUnknownSettingsOfOthersAreRepaired(t *testing.T) {
	c := dial(t)
	run(t, "ipvsadm -A -t 10.96.0.10:80 -s wrr -p 60 -M 255.255.255.0")
	run(t, "ipvsadm -a -t 10.96.0.10:80 -r 192.168.10.11:8080 -m -w 65537")
	run(t, "ipvsadm -A -u 10.96.0.53:53 -s wrr -p 60 -M 255.255.255.0")
	run(t, "ipvsadm -a -u 10.96.0.53:53 -r 192.168.10.11:53 -i --tun-type gre --tun-csum -w 1")
	run(t, "ipvsadm -A -u 10.96.0.53:123 -s wrr -p 60 --pe sip")
	run(t, "ipvsadm -A -f 7 -s wrr") // of a packet mark: none of ours

	got := list(t, c, false)
	if len(got) != 3 || !got[web].ForeignOptions || !got[ntp].ForeignOptions || !got[dns].ForeignOptions || !got[dns].Destinations[0].ForeignOptions {
		t.Errorf("listed %+v", got)
	}
	if d := got[web].Destinations[0]; d.ForeignOptions || d.Weight != 65537&(1<<16-1) { // the library cuts it
		t.Errorf("weight 65537 was read as %+v", d)
	}
	fatal.If(t, c.UpdateServer(t.Context(), Server{Key: web, Scheduler: "wrr", Persistence: 60}))
	fatal.If(t, c.UpdateServer(t.Context(), Server{Key: dns, Scheduler: "wrr"}))
	fatal.If(t, c.UpdateDestination(t.Context(), dns, Destination{AddrPort: netip.MustParseAddrPort("192.168.10.11:53"), Weight: 1}))
	got = list(t, c, false)
	if got[web].ForeignOptions || got[dns].ForeignOptions || got[dns].Destinations[0].ForeignOptions {
		t.Errorf("after updates %+v", got)
	}
}

func TestTimeoutsOfZeroStay(t *testing.T) {
	c := dial(t)
	before, err := c.Timeouts(t.Context())
	fatal.If(t, err)
	fatal.If(t, c.SetTimeouts(t.Context(), Timeouts{TCP: 1000 * time.Second, UDP: 1500 * time.Millisecond}))
	got, err := c.Timeouts(t.Context())
	fatal.If(t, err)
	if want := (Timeouts{TCP: 1000 * time.Second, TCPFin: before.TCPFin, UDP: 2 * time.Second}); got != want {
		t.Errorf("timeouts are %v, want %v", got, want)
	}
}

// A call whose time is over gives up its socket, and the next works.
func TestAfterADeadline(t *testing.T) {
	c := dial(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	err := c.do(ctx, func(h *ipvs.Handle) error {
		<-ctx.Done() // as where the kernel has no answer
		_, err := h.GetServices()
		return err
	})
	if !errors.Is(err, context.DeadlineExceeded) || c.handle != nil {
		t.Fatalf("got %v, connection %v", err, c.handle)
	}
	fatal.If(t, c.AddServer(t.Context(), Server{Key: web, Scheduler: "wrr"}))
	gone, stop := context.WithCancel(t.Context())
	stop()
	if err := c.DeleteServer(gone, web); !errors.Is(err, context.Canceled) {
		t.Errorf("after its end a context still let through: %v", err)
	}
	if _, err := c.Servers(gone, false, noKeys); !errors.Is(err, context.Canceled) {
		t.Errorf("after its end a context still let through: %v", err)
	}
	if keys := list(t, c, false); len(keys) != 1 {
		t.Errorf("listed %v", keys)
	}
}

// How packets get to a destination is read as it was written, and ipvsadm agrees; a change of it is a change of the destination.
func TestForwardingIsReadAsWritten(t *testing.T) {
	c := dial(t)
	for _, tt := range []struct {
		key Key
		at  netip.AddrPort
	}{{web, first}, {web6, first6}} {
		fatal.If(t, c.AddServer(t.Context(), Server{Key: tt.key, Scheduler: "wrr"}))
		fatal.If(t, c.AddDestination(t.Context(), tt.key, Destination{AddrPort: tt.at, Weight: 1}))
		for _, way := range []Forwarding{
			{Method: Direct}, {Method: Tunnel}, {Method: Tunnel, Type: GUE, Port: 6080}, {Method: Tunnel, Type: GRE}, {},
		} {
			want := Destination{AddrPort: tt.at, Weight: 7, Forwarding: way}
			fatal.If(t, c.UpdateDestination(t.Context(), tt.key, want))
			got, err := c.Destinations(t.Context(), tt.key)
			fatal.If(t, err)
			if diff := cmp.Diff([]Destination{want}, got, compareAddrs); diff != "" {
				t.Errorf("listed (-want +got):\n%s", diff)
			}
			line := fmt.Sprintf("-a %s -r %s %s\n", tt.key, tt.at, way.Text(7))
			if said := run(t, "ipvsadm -S -n"); !strings.Contains(said, line) {
				t.Errorf("ipvsadm says\n%swant %s", said, line)
			}
		}
	}
}

// The flag of one packet and thresholds come and go by updates, and those of ipvsadm are read.
func TestOnePacketAndLimits(t *testing.T) {
	c := dial(t)
	fatal.If(t, c.AddServer(t.Context(), Server{Key: dns, Scheduler: "wrr"}))
	fatal.If(t, c.AddDestination(t.Context(), dns, Destination{AddrPort: first, Weight: 1}))
	for _, limits := range []Limits{{Upper: 100, Lower: 10}, {Upper: 7}, {}} {
		server := Server{Key: dns, Scheduler: "wrr", OnePacket: limits.Lower > 0}
		dest := Destination{AddrPort: first, Weight: 1, Limits: limits}
		fatal.If(t, c.UpdateServer(t.Context(), server))
		fatal.If(t, c.UpdateDestination(t.Context(), dns, dest))
		wantList(t, c, false, map[Key]listing{dns: {server, []Destination{dest}}})
		want := fmt.Sprintf("%s %d %d 0 0", first, limits.Upper, limits.Lower)
		if said := strings.Join(strings.Fields(run(t, "ipvsadm -L -n --thresholds")), " "); !strings.Contains(said, want) || strings.Contains(said, " ops ") != server.OnePacket {
			t.Errorf("ipvsadm says\n%s\nwant %s, one packet: %v", said, want, server.OnePacket)
		}
	}
	run(t, "ipvsadm -E -u 10.96.0.53:53 -s wrr -o")
	run(t, "ipvsadm -e -u 10.96.0.53:53 -r 192.168.10.11:8080 -m -w 1 -x 5 -y 2")
	wantList(t, c, false, map[Key]listing{dns: {
		Server{Key: dns, Scheduler: "wrr", OnePacket: true}, []Destination{{AddrPort: first, Weight: 1, Limits: Limits{Upper: 5, Lower: 2}}},
	}})
}

// What ipvsadm says is what we meant.
func TestIpvsadmAgrees(t *testing.T) {
	c := dial(t)
	fatal.If(t, c.AddServer(t.Context(), Server{Key: web, Scheduler: "wlc", Persistence: 30}))
	fatal.If(t, c.AddDestination(t.Context(), web, Destination{AddrPort: first, Weight: 3}))
	fatal.If(t, c.AddServer(t.Context(), Server{Key: web6, Scheduler: "wrr"}))
	fatal.If(t, c.AddDestination(t.Context(), web6, Destination{AddrPort: first6, Weight: 1}))
	got := strings.Split(strings.TrimSpace(run(t, "ipvsadm -S -n")), "\n")
	slices.Sort(got)
	want := []string{
		"-A -t 10.96.0.10:80 -s wlc -p 30",
		"-A -t [fd00:96::10]:80 -s wrr",
		"-a -t 10.96.0.10:80 -r 192.168.10.11:8080 -m -w 3",
		"-a -t [fd00:96::10]:80 -r [fd00::11]:8080 -m -w 1",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("ipvsadm -S -n (-want +got):\n%s", diff)
	}
}

// Counters are those of each destination; a server that does not exist has none.
func TestCountersOfEachDestination(t *testing.T) {
	c := dial(t)
	fatal.If(t, c.AddServer(t.Context(), Server{Key: web, Scheduler: "wrr"}))
	fatal.If(t, c.AddDestination(t.Context(), web, Destination{AddrPort: first, Weight: 1}))
	for key, want := range map[Key][]Counters{web: {{AddrPort: first}}, dns: {}} {
		got, err := c.Counters(t.Context(), key)
		fatal.If(t, err)
		if diff := cmp.Diff(want, got, compareAddrs); diff != "" {
			t.Errorf("%v (-want +got):\n%s", key, diff)
		}
	}
}
