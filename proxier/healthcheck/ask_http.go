package healthcheck

import (
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
	conn, err := w.connect(ctx, q.At)
	if err != nil {
		return err
	}
	defer conn.Close()
	resp, err := transport.RoundTrip(w.request(context.WithValue(ctx, connKey{}, conn), q.At))
	if err != nil {
		return ended(ctx, of("answer", err))
	}
	defer resp.Body.Close()
	return ended(ctx, w.judge(resp))
}

func (w *web) connect(ctx context.Context, at netip.AddrPort) (net.Conn, error) {
	conn, err := w.dialer.tcp(ctx, at)
	if err != nil || w.check.Type != source.CheckHTTPS {
		return conn, err
	}
	over := tls.Client(conn, tlsConfig(w.check, at, "http/1.1"))
	if err := over.HandshakeContext(ctx); err != nil {
		conn.Close()
		return nil, handshakeError(err)
	}
	return over, nil
}

func (w *web) request(ctx context.Context, at netip.AddrPort) *http.Request {
	u := *w.path
	u.Scheme, u.Host = "http", at.String() // the connection is there, whatever it goes over
	req := &http.Request{Method: cmp.Or(w.check.Method, http.MethodGet), URL: &u, Host: w.host(at), Header: header}
	return req.WithContext(ctx)
}

// header is that of all requests. It is only read.
var header = http.Header{"User-Agent": {"svcproxy"}}

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

// connKey is of the value of a context: the connection that a request goes over.
type connKey struct{}

// transport makes one request over a connection that is there. It follows no
// redirect, asks no proxy, and keeps nothing between requests.
var transport = &http.Transport{
	DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return ctx.Value(connKey{}).(net.Conn), nil
	},
	DisableKeepAlives:      true,
	DisableCompression:     true,
	MaxResponseHeaderBytes: maxHeader,
	ReadBufferSize:         2 << 10,
	WriteBufferSize:        1 << 10,
	Protocols:              http1(),
}

func http1() *http.Protocols {
	p := new(http.Protocols)
	p.SetHTTP1(true)
	return p
}

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
	var cert *tls.CertificateVerificationError
	if errors.As(err, &cert) {
		return fmt.Errorf("certificate: %w", cert.Err)
	}
	return of("TLS handshake", err)
}

// ended returns a timeout for an error that is one only by the end of ctx.
func ended(ctx context.Context, err error) error {
	if err != nil && !isTimeout(err) && errors.Is(ctx.Err(), context.DeadlineExceeded) && !errors.Is(err, errBody) {
		return timeoutError("answer")
	}
	return err
}
