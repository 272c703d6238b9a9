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
	"strings"

	"svcproxy.dev/svcproxy/source"
)

// Bounds of what is read of a response.
const (
	maxHeader = 64 << 10
	maxBody   = 64 << 10
)

// askHTTP makes one request, over TLS where the check is of HTTPS.
func askHTTP(ctx context.Context, at netip.AddrPort, check *source.HealthCheck, body *regexp.Regexp) error {
	path, err := url.ParseRequestURI(cmp.Or(check.Path, "/"))
	if err != nil {
		return err
	}
	raw, err := connect(ctx, check, at)
	if err != nil {
		return err
	}
	defer raw.Close() // also of TLS, which would wait until its farewell is taken
	conn := net.Conn(raw)
	if check.Type == source.CheckHTTPS {
		secure := tls.Client(raw, tlsConfig(check, at, "http/1.1"))
		if err := secure.HandshakeContext(ctx); err != nil {
			return handshakeError(err)
		}
		conn = secure
	}
	defer bound(ctx, conn)()
	read := http.ReadResponse
	if body == nil { // what a server writes below the status line may be no header to net/http, and good to other clients
		read = readStatus
	}
	req := &http.Request{Method: cmp.Or(check.Method, http.MethodGet), URL: path, Host: hostOf(check, at), Header: header, Close: true}
	resp, err := exchange(conn, req, read)
	if err != nil {
		return of("answer", err)
	}
	return judge(resp, check, body)
}

// exchange sends a request and returns the response, whose body may be read as long as
// the connection is there; read reads it. It is no http.Transport, which keeps two goroutines for a
// connection, and logs what an endpoint says before it is asked.
func exchange(conn net.Conn, req *http.Request, read func(*bufio.Reader, *http.Request) (*http.Response, error)) (*http.Response, error) {
	if err := req.Write(conn); err != nil {
		return nil, err
	}
	r := bufio.NewReader(io.LimitReader(conn, maxHeader+2*maxBody)) // twice, for the sizes of chunks
	for {
		resp, err := read(r, req)
		if err != nil || resp.StatusCode >= 200 || resp.StatusCode == http.StatusSwitchingProtocols {
			return resp, err
		}
	}
}

// readStatus reads a status line (RFC 9112 4) and passes over an answer of 1xx up to its empty line.
func readStatus(r *bufio.Reader, _ *http.Request) (*http.Response, error) {
	line, err := readLine(r)
	if err != nil {
		return nil, err
	}
	version, rest, _ := strings.Cut(line, " ")
	code, _, _ := strings.Cut(strings.TrimLeft(rest, " "), " ")
	status, err := strconv.ParseUint(code, 10, 16)
	if !strings.HasPrefix(version, "HTTP/1.") || err != nil || len(code) != 3 {
		return nil, fmt.Errorf("malformed HTTP status line %q", line[:min(len(line), maxStatusLine)])
	}
	for status >= 100 && status < 200 && status != http.StatusSwitchingProtocols && line != "" {
		if line, err = readLine(r); err != nil {
			return nil, err
		}
	}
	return &http.Response{StatusCode: int(status)}, nil
}

// maxStatusLine is how many bytes of a malformed status line are shown.
const maxStatusLine = 64

// readLine returns a line without its end. One that is longer than the room of r is an error.
func readLine(r *bufio.Reader) (string, error) {
	line, err := r.ReadSlice('\n')
	if err != nil {
		return "", err
	}
	return strings.TrimRight(string(line), "\r\n"), nil
}

// header is that of all requests. It is only read.
var header = http.Header{"User-Agent": {"svcproxy"}, "Accept": {"*/*"}}

// hostOf returns what the request names: the endpoint without its port where that is the usual one.
func hostOf(check *source.HealthCheck, at netip.AddrPort) string {
	usual := uint16(80)
	if check.Type == source.CheckHTTPS {
		usual = 443
	}
	plain := netip.AddrPortFrom(at.Addr().WithZone(""), at.Port()).String()
	if at.Port() == usual {
		plain = plain[:len(plain)-1-len(strconv.Itoa(int(usual)))]
	}
	return cmp.Or(check.Host, plain)
}

// judge says what is wrong with a response, whose body must match where an expression is given.
func judge(resp *http.Response, check *source.HealthCheck, match *regexp.Regexp) error {
	has := func(r source.StatusRange) bool { return r.Has(resp.StatusCode) }
	if !slices.ContainsFunc(check.ExpectStatus, has) {
		return fmt.Errorf("status %d", resp.StatusCode)
	}
	if match == nil {
		return nil
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	switch {
	case match.Match(body):
		return nil
	case err != nil:
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
	out := &tls.Config{
		ServerName:         cmp.Or(check.ServerName, host, at.Addr().WithZone("").String()),
		InsecureSkipVerify: check.Insecure,
		NextProtos:         []string{protocol},
		MinVersion:         minVersion(check),
	}
	if check.Insecure || out.MinVersion < tls.VersionTLS12 {
		out.CipherSuites = allSuites
	}
	return out
}

// minVersion returns the oldest version of TLS that is used. Where nothing is verified nothing is kept secret from the
// server either, so an old one is no reason to call it down.
func minVersion(check *source.HealthCheck) uint16 {
	switch {
	case check.MinTLS != source.AnyTLS:
		return tls.VersionTLS10 + uint16(check.MinTLS-source.TLS10)
	case check.Insecure:
		return tls.VersionTLS10
	}
	return tls.VersionTLS12
}

// allSuites are those of TLS 1.2 and older that crypto/tls has, also those that are off by default, as all without
// forward secrecy are.
var allSuites = func() (ids []uint16) {
	for _, s := range slices.Concat(tls.CipherSuites(), tls.InsecureCipherSuites()) {
		ids = append(ids, s.ID)
	}
	return ids
}()

// handshakeError returns the error of a TLS handshake in short words.
func handshakeError(err error) error {
	if cert, is := errors.AsType[*tls.CertificateVerificationError](err); is {
		return fmt.Errorf("certificate: %w", cert.Err)
	}
	return of("TLS handshake", err)
}
