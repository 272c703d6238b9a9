//go:build netns

package main

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/netutil/netnstest"
	"svcproxy.dev/svcproxy/proxier/backendtest"
)

const drainFile = `[[services]]
name = "web"
vips = ["10.96.0.10", "fd00:96::10"]
ports = [{ name = "http", port = 80, target_port = 8080 }]
endpoints = ["192.0.2.11", "192.0.2.12", "fd00::11", "fd00::12"]
`

// A drainHost is a host with endpoints that accept connections.
type drainHost struct {
	*planHost
	arrived map[netip.Addr]chan net.Conn
}

// connect opens a connection, and returns both ends, and which endpoint has it.
func (h *drainHost) connect(to string) (here, there net.Conn, at netip.Addr) {
	h.Helper()
	here, err := net.DialTimeout("tcp", to, pace.Scale(10*time.Second))
	fatal.If(h, err)
	_ = here.SetDeadline(time.Now().Add(pace.Scale(10 * time.Second)))
	var name [64]byte
	n, err := here.Read(name[:]) // the endpoint says who it is
	fatal.If(h, err)
	at = netip.MustParseAddr(string(name[:n]))
	return here, <-h.arrived[at], at
}

// serve has an endpoint accept connections until the test ends.
func (h *drainHost) serve(addr string) {
	h.Helper()
	at := netip.MustParseAddr(addr)
	l, err := net.Listen("tcp", netip.AddrPortFrom(at, 8080).String())
	fatal.If(h, err)
	h.Cleanup(func() { l.Close() })
	arrived := make(chan net.Conn, 1)
	h.arrived[at] = arrived
	go func() {
		for c, err := l.Accept(); err == nil; c, err = l.Accept() {
			_, _ = io.WriteString(c, addr)
			arrived <- c
		}
	}()
}

// hold returns a connection that an endpoint has, and what ends it on both sides.
func (h *drainHost) hold(to, endpoint string) (end func()) {
	h.Helper()
	for range 200 {
		here, there, at := h.connect(to)
		if at.String() == endpoint {
			return func() { here.Close(); there.Close() }
		}
		there.Close()
		here.Close()
	}
	h.Fatalf("of 200 connections none went to %s", endpoint)
	return nil
}

// only fails the test if of many new connections one goes to another endpoint.
func (h *drainHost) only(when, to, endpoint string) {
	h.Helper()
	for range 40 {
		here, there, at := h.connect(to)
		there.Close()
		here.Close()
		if at.String() != endpoint {
			h.Fatalf("%s: a new connection goes to %s", when, at)
		}
	}
}

// says runs a command, and fails the test unless it ends so and says that.
func (h *drainHost) says(code int, want string, args ...string) {
	h.Helper()
	var out strings.Builder
	cmd := command(h.T, h.dir, args...)
	cmd.Stdout, cmd.Stderr = &out, &out
	_ = cmd.Run() // the code is looked at
	if got := cmd.ProcessState.ExitCode(); got != code || !strings.Contains(out.String(), want) {
		h.Errorf("%s: exit %d: %s\nwant %d: %s", strings.Join(args, " "), got, out.String(), code, want)
	}
}

// healthz returns what load balancers hear, once there is an answer.
func (h *drainHost) healthz() (int, string) {
	h.Helper()
	var conn net.Conn // in this namespace, which that of a http.Client may not be
	fatal.If(h, pace.Poll(10*time.Second, func() (err error) {
		conn, err = net.Dial("tcp", "127.0.0.1:10256")
		return err
	}))
	defer conn.Close()
	if _, err := io.WriteString(conn, "GET /healthz HTTP/1.0\r\n\r\n"); err != nil {
		h.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	fatal.If(h, err)
	body, err := io.ReadAll(resp.Body)
	fatal.If(h, err)
	return resp.StatusCode, string(body)
}

func newDrainHost(t *testing.T) *drainHost {
	netnstest.Enter(t)
	dir := etc(t, map[string]string{"web.toml": drainFile, "svcproxy.toml": "mode = \"nftables\"\nhttp_address = \"127.0.0.1:10256\"\n[sync]\nmin_interval = \"500ms\"\n"})
	h := &drainHost{&planHost{t, dir}, map[netip.Addr]chan net.Conn{}}
	for _, args := range []string{
		"link set lo up", "addr add 192.0.2.11/32 dev lo", "addr add 192.0.2.12/32 dev lo", "addr add fd00::11/128 dev lo nodad", "addr add fd00::12/128 dev lo nodad",
		"route add 10.96.0.0/16 dev lo src 192.0.2.11", "-6 route add fd00:96::/64 dev lo src fd00::11",
	} {
		backendtest.Command(t, "ip", strings.Fields(args)...)
	}
	for _, a := range []string{"192.0.2.11", "192.0.2.12", "fd00::11", "fd00::12"} {
		h.serve(a)
	}
	return h
}

// From the first line on an endpoint gets no new connection, also over a rewrite of the file
// and a restart; the wait ends when its last connection has ended.
func TestDrainMovesNewConnectionsAway(t *testing.T) {
	const four, six = "10.96.0.10:80", "[fd00:96::10]:80"
	h := newDrainHost(t)
	h.says(3, "does not answer", "drain", "192.0.2.12")
	stop := h.daemon()
	h.until(0)
	h.says(0, "nothing is drained", "drain")
	h.says(1, "no service has an endpoint 192.0.2.99", "drain", "192.0.2.99")
	h.says(1, "no service is default/wbe", "drain", "wbe/192.0.2.12")
	h.says(1, "192.0.2.12 is not drained", "undrain", "192.0.2.12")
	end := h.hold(four, "192.0.2.12")

	waiting := command(t, h.dir, "drain", "192.0.2.12", "--reason", "new disk", "--wait")
	waiting.Stderr = t.Output()
	out, err := waiting.StdoutPipe()
	fatal.If(t, err)
	fatal.If(t, waiting.Start())
	lines := bufio.NewReader(out)
	line := func(want string) {
		t.Helper()
		for {
			got, err := lines.ReadString('\n')
			if err != nil {
				t.Fatalf("%v; want %q", err, want)
			}
			if got == want+"\n" {
				return
			}
			if !strings.HasPrefix(got, "left: ") {
				t.Fatalf("said %q, want %q", got, want)
			}
		}
	}
	line("192.0.2.12 is drained: no new connections")
	h.only("after the first line", four, "192.0.2.11")
	line("left: 1 connection: default/web 1")
	h.says(0, "192.0.2.12  new disk  root  ", "drain")

	h.write("web.toml", strings.Replace(drainFile, "name = \"http\"", "name = \"other\"", 1))
	h.says(0, "", "status", "web")
	h.until(0)
	h.only("after a rewrite of the file", four, "192.0.2.11")
	stop()
	h.only("without a daemon", four, "192.0.2.11")
	stop = h.daemon()
	defer func() { stop() }()
	for range 5 {
		h.only("while it starts again", four, "192.0.2.11")
	}
	h.until(0)
	h.only("after a restart", four, "192.0.2.11")
	end()
	line("left: nothing")
	if err := waiting.Wait(); err != nil {
		t.Errorf("the wait: %v", err)
	}

	h.hold(six, "fd00::12")()
	h.says(0, "default/web/fd00::12 is drained: no new connections\n", "drain", "web/fd00::12")
	h.only("of one service", six, "fd00::11")
	h.says(0, "192.0.2.12 is not drained any more", "undrain", "192.0.2.12")
	h.hold(four, "192.0.2.12")()
	h.says(0, "192.0.2.12 is drained", "drain", "192.0.2.12") // the kernel has just been synced, and is again when the interval is over
	h.only("at once", four, "192.0.2.11")
	h.says(1, "fd00::12 is not drained; default/web/fd00::12 is", "undrain", "fd00::12")
	h.says(0, "", "undrain", "default/web/fd00::12")
	h.hold(six, "fd00::12")()
}

// A host that is drained says so to load balancers, and serves what comes.
func TestDrainNode(t *testing.T) {
	h := newDrainHost(t)
	stop := h.daemon()
	defer func() { stop() }()
	h.until(0)
	if code, body := h.healthz(); code != 200 {
		t.Errorf("/healthz says %d %s", code, body)
	}
	h.says(0, "say 503\n503 is answered by: 127.0.0.1:10256\n", "drain", "--node", "--reason", "kernel")
	h.says(1, "this host is drained by root: kernel", "status", "--check", "web")
	for range 2 {
		if code, body := h.healthz(); code != 503 || !strings.Contains(body, `"drained":{"reason":"kernel",`) {
			t.Errorf("/healthz says %d %s", code, body)
		}
		h.hold("10.96.0.10:80", "192.0.2.12")()
		stop() // and again after a restart
		stop = h.daemon()
		h.until(0)
	}
	end := h.hold("[fd00:96::10]:80", "fd00::12")
	time.AfterFunc(time.Second, end)
	h.says(0, "left: 1 connection: default/web 1\nleft: nothing\n", "drain", "--node", "--wait")
	h.says(0, "", "undrain", "--node")
	if code, body := h.healthz(); code != 200 {
		t.Errorf("/healthz says %d %s", code, body)
	}
	if text, err := os.ReadFile(h.dir + "/lib/conditions.json"); err != nil || strings.Contains(string(text), "kernel") {
		t.Errorf("kept: %s, %v", text, err)
	}
}
