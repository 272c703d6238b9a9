package healthcheck

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/source"
)

// long is more than any answer takes here. short is a timeout that is meant to pass.
const (
	long  = 20 * time.Second
	short = 100 * time.Millisecond
)

// asked returns what comes of asking an address once: "" if it is alive.
func asked(t testing.TB, at netip.AddrPort, check source.HealthCheck) string {
	t.Helper()
	if check.Timeout == 0 {
		check.Timeout = long
	}
	ctx, cancel := context.WithTimeout(t.Context(), check.Timeout)
	defer cancel()
	q := Ask(&source.Service{Key: source.Key{Namespace: "prod", Name: "web"}, HealthCheck: &check}, &source.Endpoint{Addr: at.Addr()})
	q.At = at
	return words(ask(ctx, q, &check, expressions{}.use(&check), ""))
}

func want(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %q, want %q", what, got, want)
	}
}

func addrOf(a net.Addr) netip.AddrPort { return netip.MustParseAddrPort(a.String()) }

// serve calls talk with each connection to an address of a family.
func serve(t testing.TB, address string, talk func(net.Conn)) netip.AddrPort {
	l, err := net.Listen("tcp", address)
	fatal.If(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				talk(conn)
			}()
		}
	}()
	return addrOf(l.Addr())
}

// closed returns a port of loopback at which nobody listens.
func closed(t testing.TB) netip.AddrPort {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	fatal.If(t, err)
	defer l.Close()
	return addrOf(l.Addr())
}

func TestTCP(t *testing.T) {
	silent := func(c net.Conn) { io.Copy(io.Discard, c) }
	check := source.HealthCheck{Type: source.CheckTCP}
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		want(t, address, asked(t, serve(t, address, silent), check), "")
	}
	want(t, "closed", asked(t, closed(t), check), "connection refused")
	talk := source.HealthCheck{Type: source.CheckTCP, Expect: "PONG", Timeout: short}
	want(t, "silent", asked(t, serve(t, "127.0.0.1:0", silent), talk), "answer timed out")
	hangup := serve(t, "127.0.0.1:0", func(net.Conn) {})
	want(t, "hangs up", asked(t, hangup, source.HealthCheck{Type: source.CheckTCP, Expect: "PONG"}), "connection closed")
}

// TestTCPExpectsTheAnswer has a server that answers PING with +PONG, byte by byte and without an end.
func TestTCPExpectsTheAnswer(t *testing.T) {
	at := serve(t, "127.0.0.1:0", func(c net.Conn) {
		line := make([]byte, 6)
		io.ReadFull(c, line)
		for _, b := range []byte(strings.Replace("+Xing", "Xing", "PONG"+string(line[4:]), 1)) {
			c.Write([]byte{b})
		}
		io.Copy(io.Discard, c)
	})
	check := source.HealthCheck{Type: source.CheckTCP, Send: "PING\r\n", Expect: `^\+PONG`}
	want(t, "talk", asked(t, at, check), "")
	check.Send, check.Expect = "PING\xff\n", `^\+PONG\xff`
	want(t, "bytes", asked(t, at, check), "")
	check.Expect, check.Timeout = "^-", short
	want(t, "another answer", asked(t, at, check), "the answer does not match")
	flood := serve(t, "127.0.0.1:0", func(c net.Conn) {
		c.Write(make([]byte, 2*maxTalk))
		for err := error(nil); err == nil; {
			_, err = c.Write([]byte("xxxx"))
		}
	})
	want(t, "an answer without end", asked(t, flood, source.HealthCheck{Type: source.CheckTCP, Expect: "x"}), "the answer does not match")
}

// TestTCPConnectTimesOut asks a port whose queue of connections is full.
func TestTCPConnectTimesOut(t *testing.T) {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	fatal.If(t, err)
	defer syscall.Close(fd)
	fatal.If(t, errors.Join(syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), syscall.Listen(fd, 0)))
	name, err := syscall.Getsockname(fd)
	fatal.If(t, err)
	at := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(name.(*syscall.SockaddrInet4).Port))
	conn, err := net.Dial("tcp", at.String())
	fatal.If(t, err)
	defer conn.Close()
	want(t, "full", asked(t, at, source.HealthCheck{Type: source.CheckTCP, Timeout: short}), "connect timed out")
}

// TestProbeEndsWithAReset sees how a probe ends: by a reset, which leaves nothing at either side.
func TestProbeEndsWithAReset(t *testing.T) {
	ends := make(chan error, 1)
	at := serve(t, "127.0.0.1:0", func(c net.Conn) {
		_, err := c.Read(make([]byte, 1))
		ends <- err
	})
	want(t, "tcp", asked(t, at, source.HealthCheck{Type: source.CheckTCP}), "")
	if err := <-ends; !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the connection ended with %v, want a reset", err)
	}
}

func TestSourceAddressOfProbes(t *testing.T) {
	from := make(chan string, 1)
	at := serve(t, "127.0.0.1:0", func(c net.Conn) { from <- addrOf(c.RemoteAddr()).Addr().String() })
	check := source.HealthCheck{Type: source.CheckTCP, Source: netip.MustParseAddr("127.7.7.7")}
	other := serve(t, "[::1]:0", func(c net.Conn) { from <- addrOf(c.RemoteAddr()).Addr().String() })
	for _, tt := range []struct {
		what string
		at   netip.AddrPort
		want string
	}{{"source", at, "127.7.7.7"}, {"that of an endpoint of the other family", other, "::1"}} {
		if err := asked(t, tt.at, check); err != "" {
			t.Fatalf("%s: %s", tt.what, err) // nobody says where from
		}
		want(t, tt.what, <-from, tt.want)
	}
	check.Source = netip.MustParseAddr("192.0.2.99")
	want(t, "one that this host does not have", asked(t, at, check), "not asked: cannot assign requested address")
}

func TestHTTP(t *testing.T) {
	var seen *http.Request
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen = r
		switch r.URL.Path {
		case "/down":
			w.WriteHeader(http.StatusServiceUnavailable)
		case "/moved":
			http.Redirect(w, r, "/down", http.StatusFound)
		case "/early":
			w.WriteHeader(http.StatusEarlyHints)
		case "/far":
			io.WriteString(w, strings.Repeat("-", maxBody)+"ok")
		case "/hangs":
			<-r.Context().Done()
		}
		fmt.Fprintf(w, "all ok %s", r.URL.Query().Get("x"))
	}))
	defer server.Close()
	at := addrOf(server.Listener.Addr())
	check := source.HealthCheck{Type: source.CheckHTTP, Path: "/", Method: "GET", ExpectStatus: statuses(200, 299, 302, 302)}
	for _, tt := range []struct{ path, body, want string }{
		{"/", "", ""},
		{"/?x=1", "ok 1$", ""},
		{"/", "ok 1$", "the body does not match"},
		{"/down", "", "status 503"},
		{"/moved", "", ""},
		{"/early", "all ok", ""},
		{"/far", "-ok", "the body does not match"},
	} {
		check.Path, check.ExpectBody = tt.path, tt.body
		want(t, tt.path+" "+tt.body, asked(t, at, check), tt.want)
	}
	check.Path, check.ExpectBody, check.Method, check.Host = "/x", "", "HEAD", "shop.example"
	want(t, "HEAD", asked(t, at, check), "")
	want(t, "request", fmt.Sprint(seen.Method, seen.URL, seen.Host, seen.Proto, seen.UserAgent()), "HEAD/xshop.exampleHTTP/1.1svcproxy")
	check.Path, check.Method, check.Timeout = "/hangs", "GET", short
	want(t, "hangs", asked(t, at, check), "answer timed out")
	want(t, "closed", asked(t, closed(t), check), "connection refused")
	noise := serve(t, "127.0.0.1:0", func(c net.Conn) { io.WriteString(c, "SSH-2.0-\x1b[31m\r\n\r\n"); io.Copy(io.Discard, c) })
	if got := asked(t, noise, check); !strings.Contains(got, "malformed HTTP") || strings.Contains(got, "\x1b") {
		t.Errorf("noise: %q", got)
	}
}

// TestHTTPNoProxy has a proxy in the environment that nobody may ask.
func TestHTTPNoProxy(t *testing.T) {
	t.Setenv("HTTP_PROXY", "http://"+closed(t).String())
	at := serve(t, "[::1]:0", func(c net.Conn) { io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n") })
	want(t, "http", asked(t, at, source.HealthCheck{Type: source.CheckHTTP, ExpectStatus: statuses(200, 200)}), "")
}

func TestHTTPS(t *testing.T) {
	var sni string
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sni = r.TLS.ServerName
		io.WriteString(w, r.Host)
	}))
	server.TLS = &tls.Config{Certificates: []tls.Certificate{certificate(t, "shop.example")}}
	server.Config.ErrorLog = discard
	server.StartTLS()
	defer server.Close()
	at := addrOf(server.Listener.Addr())
	check := source.HealthCheck{Type: source.CheckHTTPS, Host: "shop.example:8443", ExpectBody: "^shop.example:8443$", ExpectStatus: statuses(200, 200)}
	want(t, "by host", asked(t, at, check), "")
	want(t, "SNI", sni, "shop.example")
	check.ServerName = "other.example"
	want(t, "another name", asked(t, at, check), "certificate: x509: certificate is valid for shop.example, not other.example")
	check.Insecure = true
	want(t, "not verified", asked(t, at, check), "")
	want(t, "SNI of server_name", sni, "other.example")
	check.Insecure, check.ServerName, check.Host = false, "", ""
	want(t, "by address", asked(t, at, check), "certificate: x509: cannot validate certificate for 127.0.0.1 because it doesn't contain any IP SANs")
	check.Timeout = short
	want(t, "silent", asked(t, serve(t, "127.0.0.1:0", func(c net.Conn) { io.Copy(io.Discard, c) }), check), "TLS handshake timed out")
	plain := serve(t, "127.0.0.1:0", func(c net.Conn) { io.WriteString(c, "HTTP/1.0 400 Bad Request\r\n\r\n") })
	check.Timeout = 0
	want(t, "no TLS", asked(t, plain, check), "tls: first record does not look like a TLS handshake")
}

// TestHTTPSOfOldServers has servers that are alive, and speak no TLS that is safe: only verify = true asks for that.
func TestHTTPSOfOldServers(t *testing.T) {
	for name, config := range map[string]*tls.Config{
		"TLS 1.0":          {MaxVersion: tls.VersionTLS10},
		"RSA key exchange": {MaxVersion: tls.VersionTLS12, CipherSuites: []uint16{tls.TLS_RSA_WITH_AES_128_CBC_SHA}},
		"3DES":             {MaxVersion: tls.VersionTLS12, CipherSuites: []uint16{tls.TLS_RSA_WITH_3DES_EDE_CBC_SHA}},
	} {
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		config.Certificates, config.MinVersion = []tls.Certificate{ofRSA(t)}, tls.VersionTLS10
		server.TLS, server.Config.ErrorLog = config, discard
		server.StartTLS()
		defer server.Close()
		check := source.HealthCheck{Type: source.CheckHTTPS, Host: "shop.example", ExpectStatus: statuses(200, 200), Insecure: true}
		want(t, name, asked(t, addrOf(server.Listener.Addr()), check), "")
		check.Insecure = false
		if got := asked(t, addrOf(server.Listener.Addr()), check); !strings.Contains(got, "tls: ") { // not the certificate
			t.Errorf("%s, verified: %q", name, got)
		}
	}
}

// TestMinTLS has servers of one version each, of which all but those of min_tls and later are down.
func TestMinTLS(t *testing.T) {
	cert, err := authority.For("shop.example")
	fatal.If(t, err)
	for i, version := range []uint16{tls.VersionTLS10, tls.VersionTLS11, tls.VersionTLS12, tls.VersionTLS13} {
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		server.TLS = &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: version, MaxVersion: version}
		server.Config.ErrorLog = discard
		server.StartTLS()
		defer server.Close()
		at, has := addrOf(server.Listener.Addr()), source.TLS10+source.TLSVersion(i)
		for least := source.AnyTLS; least <= source.TLS13; least++ {
			for _, insecure := range []bool{false, true} {
				check := source.HealthCheck{Type: source.CheckHTTPS, Host: "shop.example", ExpectStatus: statuses(200, 200), Insecure: insecure, MinTLS: least}
				alive := has >= least && (least != source.AnyTLS || insecure || has >= source.TLS12)
				if got := asked(t, at, check); (got == "") != alive || !alive && !strings.Contains(got, "protocol version") {
					t.Errorf("TLS %s, min_tls %q, insecure %t: %q", has, least, insecure, got)
				}
			}
		}
	}
}

// TestMinTLSOfOldSuites has a server with RSA key exchange only, whose certificate is verified.
func TestMinTLSOfOldSuites(t *testing.T) {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	server.TLS = &tls.Config{Certificates: []tls.Certificate{ofRSA(t)}, MaxVersion: tls.VersionTLS12, CipherSuites: []uint16{tls.TLS_RSA_WITH_AES_128_CBC_SHA}}
	server.Config.ErrorLog = discard
	server.StartTLS()
	defer server.Close()
	for least, wanted := range map[source.TLSVersion]string{source.TLS11: "certificate: ", source.TLS12: "tls: handshake failure"} {
		check := source.HealthCheck{Type: source.CheckHTTPS, Host: "shop.example", MinTLS: least}
		if got := asked(t, addrOf(server.Listener.Addr()), check); !strings.Contains(got, wanted) {
			t.Errorf("min_tls %s: %q, want %q", least, got, wanted)
		}
	}
}

// ofRSA returns a certificate that no authority signed, whose key can decrypt.
func ofRSA(t *testing.T) tls.Certificate {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	fatal.If(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	fatal.If(t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// TestHTTPStatusOnly has answers of which only the status line is good.
func TestHTTPStatusOnly(t *testing.T) {
	for _, tt := range []struct{ answer, status, body string }{
		{"HTTP/1.1 200 OK\r\nno header\r\n\r\nok", "", "malformed"},
		{"HTTP/1.1 200\n\nok", "", ""},
		{"HTTP/1.1 100 Continue\r\nno header\r\n\r\nHTTP/1.1 200 OK\r\n\r\nok", "", "malformed"},
		{"HTTP/1.1 503 Busy\r\nno header\r\n\r\nok", "status 503", "malformed"},
		{"HTTP/1.1 20 OK\r\n\r\nok", "malformed", "malformed"},
		{"SSH-2.0-x\r\n\r\n", "malformed", "malformed"},
		{strings.Repeat("x", 1<<20), "buffer full", ""},
	} {
		at := serve(t, "127.0.0.1:0", func(c net.Conn) { io.WriteString(c, tt.answer) })
		check := source.HealthCheck{Type: source.CheckHTTP, ExpectStatus: statuses(200, 200)}
		for expect, wanted := range map[string]string{"": tt.status, "ok": tt.body} {
			check.ExpectBody = expect
			if got := asked(t, at, check); (wanted == "") != (got == "") && len(tt.answer) < 1<<20 || !strings.Contains(got, wanted) {
				t.Errorf("%.40q, body %q: %q, want %q", tt.answer, expect, got, wanted)
			}
		}
	}
}

func TestGRPC(t *testing.T) {
	at, states := serveGRPC(t)
	check := source.HealthCheck{Type: source.CheckGRPC}
	want(t, "serving", asked(t, at, check), "")
	check.GRPCService = "shop"
	want(t, "not serving", asked(t, at, check), "NOT_SERVING")
	states.SetServingStatus("shop", grpc_health_v1.HealthCheckResponse_SERVING)
	want(t, "serving again", asked(t, at, check), "")
	check.GRPCService = "unknown"
	want(t, "unknown service", asked(t, at, check), "NotFound: unknown service")
	want(t, "closed", asked(t, closed(t), check), "connection refused")
	check.Timeout = short
	silent := serve(t, "127.0.0.1:0", func(c net.Conn) { io.Copy(io.Discard, c) })
	want(t, "silent", asked(t, silent, check), "answer timed out")
	check.TLS = true
	want(t, "silent over TLS", asked(t, silent, check), "TLS handshake timed out")
}

func TestGRPCOverTLS(t *testing.T) {
	cert := certificate(t, "grpc.example")
	at, _ := serveGRPC(t, grpc.Creds(credentials.NewServerTLSFromCert(&cert)))
	check := source.HealthCheck{Type: source.CheckGRPC, TLS: true, ServerName: "grpc.example"}
	want(t, "TLS", asked(t, at, check), "")
	check.ServerName = "other.example"
	want(t, "another name", asked(t, at, check), "certificate: x509: certificate is valid for grpc.example, not other.example")
	check.Insecure = true
	want(t, "not verified", asked(t, at, check), "")
}

// TestGRPCWithoutALPN has a server that leaves open what is spoken over TLS.
func TestGRPCWithoutALPN(t *testing.T) {
	config := &tls.Config{Certificates: []tls.Certificate{certificate(t, "grpc.example")}}
	at, _ := serveGRPC(t, grpc.Creds(withoutALPN{credentials.NewTLS(config), config}))
	check := source.HealthCheck{Type: source.CheckGRPC, TLS: true, ServerName: "grpc.example"}
	want(t, "no ALPN", asked(t, at, check), "")
	check.ServerName = "other.example"
	want(t, "another name", asked(t, at, check), "certificate: x509: certificate is valid for grpc.example, not other.example")
}

// TestGRPCAtHTTPS asks web servers: one that says so in the handshake, and one that does not.
func TestGRPCAtHTTPS(t *testing.T) {
	for _, tt := range []struct {
		protocols []string
		wanted    string
	}{{[]string{"http/1.1"}, "tls: no application protocol"}, {nil, "Unavailable: "}} {
		server := httptest.NewUnstartedServer(http.NotFoundHandler())
		server.TLS = &tls.Config{Certificates: []tls.Certificate{certificate(t, "grpc.example")}, NextProtos: tt.protocols}
		server.Config.ErrorLog = discard
		server.Listener = tls.NewListener(server.Listener, server.TLS)
		server.Start()
		defer server.Close()
		check := source.HealthCheck{Type: source.CheckGRPC, TLS: true, ServerName: "grpc.example"}
		if got := asked(t, addrOf(server.Listener.Addr()), check); !strings.Contains(got, tt.wanted) {
			t.Errorf("protocols %q: %q, want %q", tt.protocols, got, tt.wanted)
		}
	}
}

// withoutALPN are credentials of a server that does not negotiate a protocol.
type withoutALPN struct {
	credentials.TransportCredentials
	config *tls.Config
}

func (w withoutALPN) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn := tls.Server(raw, w.config)
	return conn, credentials.TLSInfo{}, conn.Handshake()
}

func (w withoutALPN) Clone() credentials.TransportCredentials { return w }

// serveGRPC returns a server that serves, but not the service shop.
func serveGRPC(t *testing.T, options ...grpc.ServerOption) (netip.AddrPort, *health.Server) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	fatal.If(t, err)
	states := health.NewServer()
	states.SetServingStatus("shop", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	s := grpc.NewServer(options...)
	grpc_health_v1.RegisterHealthServer(s, states)
	go s.Serve(l)
	t.Cleanup(s.Stop)
	return addrOf(l.Addr()), states
}

func TestUDP(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		at := serveUDP(t, address)
		check := source.HealthCheck{Type: source.CheckUDP, Send: "PING", Expect: "^PONG PING$"}
		want(t, "answer", asked(t, at, check), "")
		check.Expect = "^x"
		want(t, "another answer", asked(t, at, check), "the answer does not match")
		check.Send, check.Expect = "bytes", `^\x00\x80\xff$`
		want(t, "bytes", asked(t, at, check), "")
		check.Expect = `^\x00\x81`
		want(t, "other bytes", asked(t, at, check), "the answer does not match")
		check.Send, check.Timeout = "quiet", short
		want(t, "no answer", asked(t, at, check), "answer timed out")
		check.Expect = ""
		want(t, "no answer of any kind", asked(t, at, check), "answer timed out")
		check.Send = "PING"
		want(t, "any answer", asked(t, at, check), "")
	}
	want(t, "refused", asked(t, closedUDP(t), source.HealthCheck{Type: source.CheckUDP, Send: "x"}), "connection refused")
}

// serveUDP answers PING and bytes, and nothing else.
func serveUDP(t *testing.T, address string) netip.AddrPort {
	conn, err := net.ListenPacket("udp", address)
	fatal.If(t, err)
	t.Cleanup(func() { conn.Close() })
	go func() {
		b := make([]byte, 64)
		for {
			n, from, err := conn.ReadFrom(b)
			if err != nil {
				return
			}
			if string(b[:n]) == "PING" {
				conn.WriteTo([]byte("PONG PING"), from)
			}
			if string(b[:n]) == "bytes" {
				conn.WriteTo([]byte{0, 0x80, 0xff}, from)
			}
		}
	}()
	return addrOf(conn.LocalAddr())
}

func closedUDP(t *testing.T) netip.AddrPort {
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	fatal.If(t, err)
	defer conn.Close()
	return addrOf(conn.LocalAddr())
}

// statuses returns ranges: a first and a last one, and so on.
func statuses(ends ...uint16) []source.StatusRange {
	var all []source.StatusRange
	for i := 0; i < len(ends); i += 2 {
		all = append(all, source.StatusRange{First: ends[i], Last: ends[i+1]})
	}
	return all
}
