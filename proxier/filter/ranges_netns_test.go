//go:build netns

package filter

import (
	"bytes"
	"context"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/netutil/netnstest"
	"svcproxy.dev/svcproxy/proxier/backendtest"
	"svcproxy.dev/svcproxy/proxier/filter/layout"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// Source ranges of ipvs mode keep packets from where IPVS takes them, whatever rules of others
// accept, and have connection tracking not see. Here there is no IPVS, and the packets reach a
// socket.
func TestRangesBeforeForeignAccept(t *testing.T) {
	netnstest.Enter(t)
	client := neighbour(t)
	const port = 30080
	server, err := net.ListenPacket("udp", "192.0.2.1:"+strconv.Itoa(port))
	fatal.If(t, err)
	t.Cleanup(func() { server.Close() })

	k, err := Open(context.Background(), policy.IPv4)
	fatal.If(t, err)
	t.Cleanup(func() { k.Close() })
	w := backendtest.NewWorld(policy.IPv4)
	s := backendtest.Service{Name: "dns", Protocol: source.UDP, Targets: backendtest.Targets(policy.IPv4, 0, 1)}
	pool, _ := s.Pools()
	route := backendtest.Route(pool, policy.NoOne, policy.Reject)
	res := s.Resolve(&policy.Frontend{
		Key: policy.FrontendKey{Addr: policy.IPv4.Unspecified(), Port: port, Kind: policy.NodePort}, Outside: route, FromLocal: route,
		Restricted: true, SourceRanges: []netip.Prefix{netip.MustParsePrefix("192.0.2.7/32")},
	})
	w.Put(res.Key, res)
	writeUnasked(t, k, w)

	check := func(what string) {
		t.Helper()
		client("192.0.2.8", "outside")
		client("192.0.2.7", "inside")
		buf := make([]byte, 100)
		fatal.If(t, server.SetReadDeadline(time.Now().Add(pace.Scale(10*time.Second))))
		if n, _, err := server.ReadFrom(buf); err != nil || string(buf[:n]) != "inside\n" {
			t.Errorf("%s: got %q, %v", what, buf[:n], err)
		}
	}
	check("as it is")
	command(t, "iptables", "-I", "INPUT", "-j", "ACCEPT")
	check("accepted before")
	command(t, "iptables", "-t", "raw", "-I", "PREROUTING", "-j", "CT", "--notrack")
	check("not tracked")
}

// writeUnasked writes the rules of ipvs mode, without what asks whether IPVS balances, which is not there.
func writeUnasked(t *testing.T, k *Kernel, w *backendtest.World) {
	t.Helper()
	r := layout.NewIPVSRules(policy.IPv4)
	h, err := k.ReadFor(t.Context(), r, w.State)
	fatal.If(t, err)
	d := &difference{}
	d.compareChains(chainsOf(h.Tables), func(emit layout.Emit) {
		r.Chains(func(table, name string, rules []byte) {
			var kept []byte
			for line := range bytes.Lines(bytes.ReplaceAll(rules, []byte(" -m ipvs ! --ipvs"), nil)) {
				if !bytes.Contains(line, []byte("-m ipvs")) {
					kept = append(kept, line...)
				}
			}
			emit(table, name, kept)
		})
	}, referencedIn(h.Tables))
	d.compareJumps(h.Tables, jumpsOf(r), &k.order)
	d.compareSets(h.Sets, r.Sets(w.State), false)
	fatal.If(t, k.write(t.Context(), d))
}

// neighbour makes a host that sends words over UDP to port 30080 of this one, 192.0.2.1, from 192.0.2.7 and 192.0.2.8.
func neighbour(t *testing.T) func(from, word string) {
	t.Helper()
	name := netnstest.Make(t).Name
	inside := func(args ...string) { t.Helper(); command(t, "ip", slices.Concat([]string{"-n", name}, args)...) }
	command(t, "ip", "link", "add", "up0", "type", "veth", "peer", "name", "eth0", "netns", name)
	command(t, "ip", "addr", "add", "192.0.2.1/24", "dev", "up0")
	command(t, "ip", "link", "set", "up0", "up")
	for _, a := range []string{"192.0.2.7/24", "192.0.2.8/24"} {
		inside("addr", "add", a, "dev", "eth0")
	}
	inside("link", "set", "eth0", "up")
	return func(from, word string) {
		t.Helper()
		inside("route", "replace", "192.0.2.1", "dev", "eth0", "src", from)
		command(t, "ip", "netns", "exec", name, "bash", "-c", "echo "+word+" > /dev/udp/192.0.2.1/30080")
	}
}
