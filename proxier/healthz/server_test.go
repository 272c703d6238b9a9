package healthz

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/proxier/loop"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// serve runs a server for health until the test ends.
func serve(t *testing.T, address string, h *Health) *Server {
	t.Helper()
	s := NewServer(Handlers(address, "", h, NewMetrics("v1")), h, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
		http.DefaultClient.CloseIdleConnections()
	})
	return s
}

// freePort returns a TCP port that nobody listens on.
func freePort(t *testing.T) uint16 {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	fatal.If(t, err)
	defer l.Close()
	return uint16(l.Addr().(*net.TCPAddr).Port)
}

// fetch returns the answer of an address, or nil while nobody listens.
func fetch(t *testing.T, c *http.Client, addr netip.AddrPort) (*http.Response, string) {
	t.Helper()
	resp, err := c.Get("http://" + addr.String() + "/any/path")
	if err != nil {
		return nil, ""
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	fatal.If(t, err)
	return resp, string(body)
}

func TestServiceAnswers(t *testing.T) {
	health := NewHealth()
	s := serve(t, "", health)
	port := freePort(t)
	addr := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port)
	check := func(code int, weight, endpoints, healthy string) {
		t.Helper()
		resp, body := fetch(t, http.DefaultClient, addr)
		if resp == nil {
			t.Fatal("no answer")
		}
		want := "{\n\t\"service\": {\n\t\t\"namespace\": \"shop\",\n\t\t\"name\": \"web\"\n\t},\n\t\"localEndpoints\": " +
			endpoints + ",\n\t\"serviceProxyHealthy\": " + healthy + "\n}"
		if resp.StatusCode != code || body != want {
			t.Errorf("%d %s\nwant: %d %s", resp.StatusCode, body, code, want)
		}
		for key, want := range map[string]string{
			"Content-Type": "application/json", "X-Content-Type-Options": "nosniff",
			"X-Load-Balancing-Endpoint-Weight": weight,
		} {
			if got := resp.Header.Get(key); got != want {
				t.Errorf("%s = %q, want %q", key, got, want)
			}
		}
	}
	set := func(endpoints policy.PerFamily) {
		s.SetNodeHealth([]loop.NodeHealth{{
			Key: source.Key{Namespace: "shop", Name: "web"}, Port: port, LocalEndpoints: endpoints,
		}})
	}
	set(policy.PerFamily{IPv4: 2})
	s.SetNode(&policy.Node{NodePortAddrs: []netip.Addr{addr.Addr()}})
	pace.Until(t, "listening", func() bool { r, _ := fetch(t, http.DefaultClient, addr); return r != nil })
	check(200, "2", "2", "true")
	var drain *policy.Drain
	health.OnDrain(func() *policy.Drain { return drain })
	check(200, "2", "2", "true")
	drain = &policy.Drain{Reason: "disk", At: time.Date(2026, 11, 22, 21, 0, 0, 0, time.UTC)}
	check(503, "0", "2", "true,\n\t\"drained\": {\"reason\":\"disk\",\"since\":\"2026-11-22T21:00:00Z\"}")
	drain = nil
	set(policy.PerFamily{IPv6: 2}) // IPv4 still has none
	check(503, "0", "0", "true")
	set(policy.PerFamily{IPv4: 1})
	health.Synced(loop.SyncResult{Family: policy.IPv4, Err: errors.New("no"), Start: time.Now().Add(-timeout)})
	check(503, "1", "1", "false")
}

// A connection that is kept open shows that its listener was not touched.
func TestListenersFollow(t *testing.T) {
	s := serve(t, "", NewHealth())
	one, two := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.2")
	kept, gone := freePort(t), freePort(t)
	checks := []loop.NodeHealth{{Port: kept}, {Port: gone}}
	s.SetNode(&policy.Node{NodePortAddrs: []netip.Addr{one}})
	s.SetNodeHealth(checks)
	up := func(a netip.Addr, port uint16) bool {
		c, err := net.Dial("tcp", netip.AddrPortFrom(a, port).String())
		if err == nil {
			c.Close()
		}
		return err == nil
	}
	pace.Until(t, "both ports open", func() bool { return up(one, kept) && up(one, gone) })

	var dials int
	transport := &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		dials++
		return new(net.Dialer).DialContext(ctx, network, addr)
	}}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	fetch(t, client, netip.AddrPortFrom(one, kept))

	s.SetNode(&policy.Node{NodePortAddrs: []netip.Addr{one, two}})
	s.SetNodeHealth(checks[:1])
	pace.Until(t, "second address open", func() bool { return up(two, kept) })
	pace.Until(t, "other port closed", func() bool { return !up(one, gone) })
	fetch(t, client, netip.AddrPortFrom(one, kept))
	if dials != 1 {
		t.Errorf("connected %d times, want 1: the first listener was closed", dials)
	}
	if w := s.Warnings(); len(w) != 0 {
		t.Errorf("warnings %q", w)
	}
	s.SetNode(&policy.Node{NodePortAddrs: []netip.Addr{two}})
	pace.Until(t, "first address closed", func() bool { return !up(one, kept) })

	checks[0].Addresses = &source.NodeAddresses{Ranges: []netip.Prefix{netip.PrefixFrom(one, 32)}}
	s.SetNode(&policy.Node{NodePortAddrs: []netip.Addr{two}, UpAddrs: []netip.Addr{one, two}})
	s.SetNodeHealth(checks[:1])
	pace.Until(t, "the address that the service selects open", func() bool { return up(one, kept) })
	pace.Until(t, "the other one closed", func() bool { return !up(two, kept) })
}

func TestOccupiedPortIsRetried(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	fatal.If(t, err)
	addr := l.Addr().String()
	s := serve(t, addr, NewHealth())
	pace.Until(t, "a warning", func() bool { return len(s.Warnings()) == 1 })
	want := "health check: listen tcp " + addr + ": bind: address already in use; trying again every 2s"
	if got := s.Warnings()[0]; got != want {
		t.Errorf("warning %q\n   want %q", got, want)
	}
	l.Close()
	pace.Until(t, "answering", func() bool {
		resp, err := http.Get("http://" + addr + "/livez")
		if err == nil {
			resp.Body.Close()
		}
		return err == nil && resp.StatusCode == http.StatusOK
	})
	if w := s.Warnings(); len(w) != 0 {
		t.Errorf("warnings stay: %s", strings.Join(w, "; "))
	}
}

// Who wants to know hears which service's port cannot be bound, once.
func TestUnboundPortIsReportedOnce(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	fatal.If(t, err)
	defer taken.Close()
	port := netip.MustParseAddrPort(taken.Addr().String()).Port()
	s := NewServer(nil, NewHealth(), slog.New(slog.DiscardHandler))
	var told []string
	s.OnFailure(func(c loop.NodeHealth, why string) { told = append(told, c.Key.Name+" "+why) })
	s.SetNode(&policy.Node{NodePortAddrs: []netip.Addr{netip.MustParseAddr("127.0.0.1")}})
	s.SetNodeHealth([]loop.NodeHealth{{Key: source.Key{Namespace: "default", Name: "web"}, Port: port}})
	for range 2 {
		if s.reconcile(t.Context(), s.wanted()) {
			t.Fatal("a port that is taken was bound")
		}
	}
	if len(told) != 1 || !strings.HasPrefix(told[0], "web ") || !strings.Contains(told[0], "in use") {
		t.Errorf("told %q", told)
	}
}

// What could not be bound is not where a drain is heard.
func TestUnboundListenerHearsNoDrain(t *testing.T) {
	const good, bad = "127.0.0.1:1", "127.0.0.2:1"
	s := NewServer(map[string]http.Handler{good: http.NewServeMux(), bad: http.NewServeMux()}, NewHealth(), slog.New(slog.DiscardHandler))
	s.SetNode(&policy.Node{NodePortAddrs: []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("::1")}})
	s.SetNodeHealth([]loop.NodeHealth{{Port: 30000}, {Port: 30001}})
	s.setFaults(map[string]string{bad: "x", "127.0.0.1:30001": "x", "[::1]:30001": "x", "[::1]:30000": "x"})
	for address, want := range map[string]string{good: "[" + good + " health check node port 30000]", bad: "[health check node port 30000]", "": "[health check node port 30000]"} {
		if got := fmt.Sprint(s.Heard(address)); got != want {
			t.Errorf("%q: %s, want %s", address, got, want)
		}
	}
}
