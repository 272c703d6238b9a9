package healthcheck

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"

	"svcproxy.dev/svcproxy/source"
)

// Bounds of what is read of a response.
const (
	maxHeader = 64 << 10
	maxBody   = 64 << 10
)

// web makes one request, over TLS where the check is of HTTPS.
type web struct {
	dialer *dialer
	check  *source.HealthCheck
	path   *url.URL
	body   *regexp.Regexp // nil: any
}

func newHTTP(check *source.HealthCheck) (asker, error) {
	path, err := url.ParseRequestURI(cmp.Or(check.Path, "/"))
	if err != nil {
		return nil, err
	}
	w := &web{dialer: newDialer(check), check: check, path: path}
	if check.ExpectBody != "" {
		w.body, err = regexp.Compile(check.ExpectBody)
	}
	return w, err
}

func (w *web) ask(ctx context.Context, q Question) error {
	raw, err := w.dialer.tcp(ctx, q.At)
	if err != nil {
		return err
	}
	defer raw.Close() // also of TLS, which would wait until its farewell is taken
	conn, err := w.over(ctx, raw, q.At)
	if err != nil {
		return err
	}
	defer bound(ctx, conn)()
	resp, err := exchange(conn, w.request(q.At))
	if err != nil {
		return of("answer", err)
	}
	return w.judge(resp)
}

// over returns a connection with TLS where the check is of HTTPS.
func (w *web) over(ctx context.Context, raw net.Conn, at netip.AddrPort) (net.Conn, error) {
	if w.check.Type != source.CheckHTTPS {
		return raw, nil
	}
	conn := tls.Client(raw, tlsConfig(w.check, at, "http/1.1"))
	if err := conn.HandshakeContext(ctx); err != nil {
		return nil, handshakeError(err)
	}
	return conn, nil
}

// exchange sends a request and returns the response, whose body may be read as long as
// the connection is there. It is no http.Transport, which keeps two goroutines for a
// connection, and logs what an endpoint says before it is asked.
func exchange(conn net.Conn, req *http.Request) (*http.Response, error) {
	if err := req.Write(conn); err != nil {
		return nil, err
	}
	r := bufio.NewReader(io.LimitReader(conn, maxHeader+2*maxBody)) // twice, for the sizes of chunks
	for {
		resp, err := http.ReadResponse(r, req)
		if err != nil || resp.StatusCode >= 200 || resp.StatusCode == http.StatusSwitchingProtocols {
			return resp, err
		}
	}
}

func (w *web) request(at netip.AddrPort) *http.Request {
	return &http.Request{
		Method: cmp.Or(w.check.Method, http.MethodGet), URL: w.path, Host: w.host(at),
		Header: header, Close: true,
	}
}

// header is that of all requests. It is only read.
var header = http.Header{"User-Agent": {"svcproxy"}, "Accept": {"*/*"}}

// host returns what the request names: the endpoint without its port where that is the usual one.
func (w *web) host(at netip.AddrPort) string {
	usual := uint16(80)
	if w.check.Type == source.CheckHTTPS {
		usual = 443
	}
	plain := netip.AddrPortFrom(at.Addr().WithZone(""), at.Port()).String()
	if at.Port() == usual {
		plain = plain[:len(plain)-1-len(strconv.Itoa(int(usual)))]
	}
	return cmp.Or(w.check.Host, plain)
}

func (w *web) judge(resp *http.Response) error {
	has := func(r source.StatusRange) bool { return r.Has(resp.StatusCode) }
	if !slices.ContainsFunc(w.check.ExpectStatus, has) {
		return fmt.Errorf("status %d", resp.StatusCode)
	}
	if w.body == nil {
		return nil
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	if w.body.Match(body) {
		return nil
	}
	if err != nil {
		return of("answer", err)
	}
	return errBody
}

var errBody = errors.New("the body does not match")

// tlsConfig is of a connection to an endpoint. Its name is verified, and told to the
// endpoint (SNI) unless it is an address.
func tlsConfig(check *source.HealthCheck, at netip.AddrPort, protocol string) *tls.Config {
	host := check.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	return &tls.Config{
		ServerName:         cmp.Or(check.ServerName, host, at.Addr().WithZone("").String()),
		InsecureSkipVerify: check.Insecure,
		NextProtos:         []string{protocol},
	}
}

// handshakeError returns the error of a TLS handshake in short words.
func handshakeError(err error) error {
	if cert, is := errors.AsType[*tls.CertificateVerificationError](err); is {
		return fmt.Errorf("certificate: %w", cert.Err)
	}
	return of("TLS handshake", err)
}
