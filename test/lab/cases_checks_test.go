//go:build netns

package lab

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"

	"svcproxy.dev/svcproxy/internal/certtest"
	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/source"
)

// A checkType is a type of check, and servers of three hosts to ask: the first one is alive.
type checkType struct {
	keys   map[string]any // of the check, with its type
	serve  func(t *testing.T, h *Host, port uint16, n int)
	errors [3]string // as status has them; empty: it is up
}

// name of the service that is checked so.
func (c checkType) name(e *env) string { return e.name() + "-" + c.keys["type"].(string) }

// protocols returns what the service is asked over.
func (c checkType) protocols() []source.Protocol {
	if c.keys["type"] == "udp" {
		return []source.Protocol{source.UDP}
	}
	return []source.Protocol{source.TCP}
}

// testCheckTypes asks real servers by each type of check: connections go to those that answer
// as they should, and status says what is wrong with the others.
func testCheckTypes(t *testing.T, e *env) {
	types := e.checkTypes(t)
	var services []Service
	var checks []check
	for i, c := range types {
		port := 9000 + uint16(i)
		for n, h := range e.Remote {
			c.serve(t, h, port, n)
		}
		s := e.service(at(e.Remote...)...)
		s.Name, s.VIPs, s.HealthCheck = c.name(e), e.vip(byte(i+1)).Each(), tcpCheck()
		for key, value := range c.keys {
			s.HealthCheck[key] = value
		}
		if c.keys["type"] != "exec" { // its program connects to what everybody has
			s.HealthCheck["port"] = port
		}
		services = append(services, s)
		checks = append(checks, check{from: e.Client, to: e.vip(byte(i + 1)), protocols: c.protocols(), want: by(e.Remote[0])})
	}
	e.apply(t, services...)
	err := pace.Poll(patienceFor(programTimeout), func() error {
		var wrong []error
		for _, c := range types {
			wrong = append(wrong, e.matchChecks(c))
		}
		return errors.Join(wrong...)
	})
	if err != nil {
		t.Error(err)
	}
	e.expect(t, checks...)
}

// matchChecks compares what status says of the endpoints of a service with what it should.
func (e *env) matchChecks(c checkType) error {
	out, err := e.daemon.Command("status", "-o", "json", c.name(e))
	if err != nil {
		return err
	}
	var st struct {
		Loop struct {
			Services []struct {
				Endpoints []struct {
					Address, State string
					Check          struct{ Type, Error string }
				}
			}
		}
	}
	if err := json.Unmarshal([]byte(out), &st); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	got := make(map[string]string)
	for _, s := range st.Loop.Services {
		for _, ep := range s.Endpoints {
			got[ep.Address] = fmt.Sprint(ep.Check.Type, " ", ep.State, " ", ep.Check.Error)
		}
	}
	var wrong []error
	for n, h := range e.Remote {
		state := "down"
		if c.errors[n] == "" {
			state = "up"
		}
		for _, a := range h.Addr().Each() {
			if want := fmt.Sprint(c.keys["type"], " ", state, " ", c.errors[n]); got[a.String()] != want {
				wrong = append(wrong, fmt.Errorf("%s: %q, want %q", a, got[a.String()], want))
			}
		}
	}
	return errors.Join(wrong...)
}

// checkTypes returns all of them, and has the daemon trust who signs the first host's certificate.
func (e *env) checkTypes(t *testing.T) []checkType {
	const name = "shop.lab"
	trusted, other := newAuthority(t, "trusted"), newAuthority(t, "other")
	if err := trusted.Write(e.daemon.RootsFile()); err != nil {
		t.Fatal(err)
	}
	alive, wrongName, wrongSigner := certificate(t, trusted, name), certificate(t, trusted, "other.lab"), certificate(t, other, name)
	named := tlsConfig(wrongName, alive) // of two, by the name that is asked for
	brief := Slow(time.Second).String()  // as silence is part of it
	return []checkType{{
		keys: map[string]any{"type": "tcp", "expect": "^alive$"},
		serve: func(t *testing.T, h *Host, port uint16, n int) {
			if n != 1 {
				serveText(t, listen(t, h, port), [...]string{"alive", "", "dying"}[n])
			}
		},
		errors: [3]string{"", "connection refused", "the answer does not match"},
	}, {
		keys: map[string]any{"type": "http", "path": "/alive?deep", "expect_status": []int{200}, "expect_body": "^alive$"},
		serve: func(t *testing.T, h *Host, port uint16, n int) {
			serveHTTP(t, listen(t, h, port), [...]int{200, 503, 200}[n], [...]string{"alive", "alive", "dying"}[n])
		},
		errors: [3]string{"", "status 503", "the body does not match"},
	}, {
		keys: map[string]any{"type": "https", "path": "/alive?deep", "server_name": name},
		serve: func(t *testing.T, h *Host, port uint16, n int) {
			config := [...]*tls.Config{named, tlsConfig(wrongName), tlsConfig(wrongSigner)}[n]
			serveHTTP(t, tls.NewListener(listen(t, h, port), config), 200, "")
		},
		errors: [3]string{
			"", "certificate: x509: certificate is valid for other.lab, not " + name,
			"certificate: x509: certificate signed by unknown authority",
		},
	}, {
		keys: map[string]any{"type": "grpc", "service": "shop", "tls": true, "server_name": name},
		serve: func(t *testing.T, h *Host, port uint16, n int) {
			config := [...]*tls.Config{named, named, tlsConfig(wrongName)}[n]
			serveGRPC(t, listen(t, h, port), config, n != 1)
		},
		errors: [3]string{"", "NOT_SERVING", "certificate: x509: certificate is valid for other.lab, not " + name},
	}, {
		keys: map[string]any{"type": "udp", "send": `alive?\n`, "expect": "^alive$", "timeout": brief},
		serve: func(t *testing.T, h *Host, port uint16, n int) {
			serveUDP(t, h, port, [...]string{"alive", "", "dying"}[n])
		},
		errors: [3]string{"", "answer timed out", "the answer does not match"},
	}, {
		keys:   map[string]any{"type": "exec", "command": []string{"/bin/bash", e.program(t)}, "timeout": programTimeout.String()},
		serve:  func(*testing.T, *Host, uint16, int) {},
		errors: [3]string{"", "exit code 1: remote2 is not alive", "the program timed out"},
	}}
}

// programTimeout is how long a program of a check may take: on a busy machine it takes a second to start some at once.
var programTimeout = Slow(4 * time.Second)

// program returns a script that asks an endpoint who it is.
func (e *env) program(t *testing.T) string {
	const script = `read -r who rest <>"/dev/tcp/$SVCPROXY_ADDRESS/$SVCPROXY_PORT" || exit 2
case $who in
remote1) exit 0 ;;
remote2) echo "$who is not alive"; exit 1 ;;
esac
sleep 1000 # with a child, which is to end too
exit 0
`
	path := filepath.Join(e.daemon.Dir, "alive")
	if err := os.WriteFile(path, []byte(script), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func newAuthority(t *testing.T, name string) certtest.Authority {
	t.Helper()
	a, err := certtest.New(name)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func certificate(t *testing.T, by certtest.Authority, name string) tls.Certificate {
	t.Helper()
	c, err := by.For(name)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// tlsConfig is of a server with certificates. The first one is shown to who asks for no name,
// or for one that none has.
func tlsConfig(certificates ...tls.Certificate) *tls.Config {
	return &tls.Config{Certificates: certificates}
}

// listen listens at a TCP port of a host.
func listen(t *testing.T, h *Host, port uint16) (l net.Listener) {
	t.Helper()
	err := h.Do(func() (err error) {
		l, err = net.Listen("tcp", fmt.Sprint(":", port))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// serving runs a server until the case ends, which stop does.
func serving(t *testing.T, serve func() error, stop func()) {
	var running sync.WaitGroup
	running.Go(func() { _ = serve() }) // that it was stopped
	t.Cleanup(func() { stop(); running.Wait() })
}

// serveText says the same to everybody.
func serveText(t *testing.T, l net.Listener, text string) {
	serving(t, func() error {
		for {
			conn, err := l.Accept()
			if err != nil {
				return err
			}
			_, _ = io.WriteString(conn, text)
			conn.Close()
		}
	}, func() { l.Close() })
}

// serveHTTP answers /alive?deep.
func serveHTTP(t *testing.T, l net.Listener, status int, body string) {
	s := &http.Server{ErrorLog: log.New(io.Discard, "", 0), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.String() != "/alive?deep" {
			http.NotFound(w, r)
			return
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	})}
	serving(t, func() error { return s.Serve(l) }, func() { s.Close() })
}

// serveGRPC says whether it serves the service shop. All the rest is served.
func serveGRPC(t *testing.T, l net.Listener, config *tls.Config, serves bool) {
	states, s := health.NewServer(), grpc.NewServer(grpc.Creds(credentials.NewTLS(config)))
	states.SetServingStatus("shop", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	if serves {
		states.SetServingStatus("shop", grpc_health_v1.HealthCheckResponse_SERVING)
	}
	grpc_health_v1.RegisterHealthServer(s, states)
	serving(t, func() error { return s.Serve(l) }, s.Stop)
}

// serveUDP answers what is asked with alive?, unless the answer is empty.
func serveUDP(t *testing.T, h *Host, port uint16, answer string) {
	t.Helper()
	var conn net.PacketConn
	err := h.Do(func() (err error) {
		conn, err = net.ListenPacket("udp", fmt.Sprint(":", port))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	serving(t, func() error {
		question := make([]byte, 64)
		for {
			n, from, err := conn.ReadFrom(question)
			if err != nil {
				return err
			}
			if string(question[:n]) == "alive?\n" && answer != "" {
				_, _ = conn.WriteTo([]byte(answer), from)
			}
		}
	}, func() { conn.Close() })
}
