package http

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	nethttp "net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/disk"
)

const (
	parallel     = 8                // concurrent requests for the texts of one index
	maxRedirects = 5                // per request
	maxHeader    = 64 << 10         // size of a response header, in bytes
	maxSecret    = 1 << 20          // size of a file with certificates, a key or a token, in bytes
	maxTag       = 256              // size of a validator that is sent back, in bytes
	idleTime     = 90 * time.Second // after which an idle connection is closed
)

// A client sends requests to the server of one URL. It reads the files with certificates, keys and the token before each
// poll, so that renewed ones are used without a restart.
type client struct {
	*Options
	log    *slog.Logger
	files  *disk.Asker
	sum    [sha256.Size]byte // of the files that http and bearer were made from
	http   *nethttp.Client   // nil: the files could never be used
	bearer string
	failed string // why the files could not be used, as last logged; empty: they could
}

func newClient(o *Options, log *slog.Logger) *client {
	return &client{Options: o, log: log, files: disk.NewAsker("/")}
}

// renew reads the files again. If they cannot be used, for example in the middle of a renewal, c keeps using the earlier ones.
func (c *client) renew() error {
	c.files.BeginStep(disk.Patience)
	err := c.load()
	if err == nil {
		c.failed = ""
		return nil
	}
	if c.http == nil {
		return err
	}
	if c.failed != err.Error() {
		c.failed = err.Error()
		c.log.Warn("cannot use renewed credentials of [http]; keeping those of before", "err", err)
	}
	return nil
}

// load reads the files, and creates a new HTTP client if they have changed.
func (c *client) load() error {
	sum, texts := sha256.New(), [4][]byte{}
	for i, path := range []string{c.CAFile, c.CertFile, c.KeyFile, c.BearerFile} {
		text, err := c.read(path)
		if err != nil {
			return fmt.Errorf("reading a file of [http]: %w", err)
		}
		fmt.Fprintf(sum, "%d %s", len(text), text)
		texts[i] = text
	}
	now := [sha256.Size]byte(sum.Sum(nil))
	if c.http != nil && now == c.sum {
		return nil
	}
	config, err := c.tlsConfig(texts[0], texts[1], texts[2])
	if err != nil {
		return err
	}
	bearer := strings.TrimSpace(string(texts[3]))
	if c.BearerFile != "" && (bearer == "" || strings.ContainsFunc(bearer, func(r rune) bool { return r <= ' ' || r >= 0x7f })) {
		return fmt.Errorf("%s does not hold a token on one line", c.BearerFile)
	}
	c.close()
	c.http, c.bearer, c.sum = c.newHTTP(config), bearer, now
	return nil
}

func (c *client) read(path string) ([]byte, error) {
	if path == "" {
		return nil, nil
	}
	type content struct {
		text []byte
		err  error
	}
	got, ok := disk.Ask(c.files, path, func() content {
		text, _, err := disk.ReadContent(path, maxSecret)
		if err != nil {
			err = fmt.Errorf("%s: %w", path, err)
		}
		return content{text, err}
	})
	if !ok {
		return nil, fmt.Errorf("%s: %w", path, disk.ErrNoAnswer)
	}
	return got.text, got.err
}

func (c *client) tlsConfig(ca, cert, key []byte) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.CAFile != "" {
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(ca) {
			return nil, fmt.Errorf("%s holds no certificate in PEM", c.CAFile)
		}
	}
	if c.CertFile != "" {
		pair, err := tls.X509KeyPair(cert, key)
		if err != nil {
			return nil, fmt.Errorf("reading the certificate in %s and its key in %s: %w", c.CertFile, c.KeyFile, err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

// newHTTP returns a client that speaks HTTP/1.1 only. Over HTTP/2, new requests would keep using a connection that no longer
// answers.
func (c *client) newHTTP(config *tls.Config) *nethttp.Client {
	only1 := new(nethttp.Protocols)
	only1.SetHTTP1(true)
	return &nethttp.Client{
		Timeout: c.Timeout,
		Transport: &nethttp.Transport{
			Proxy: nethttp.ProxyFromEnvironment, TLSClientConfig: config, Protocols: only1, DisableCompression: true,
			MaxResponseHeaderBytes: maxHeader, MaxIdleConnsPerHost: parallel, IdleConnTimeout: idleTime,
		},
		CheckRedirect: checkRedirect,
	}
}

// close closes idle connections, so that the next request resolves the name again and opens a new connection.
func (c *client) close() {
	if c.http != nil {
		c.http.CloseIdleConnections()
	}
}

func checkRedirect(next *nethttp.Request, before []*nethttp.Request) error {
	switch first := before[0].URL; {
	case !sameOrigin(first, next.URL) || next.URL.User != nil:
		return fmt.Errorf("it redirects to another origin, %s", source.Excerpt(next.URL.Redacted()))
	case len(before) > maxRedirects:
		return fmt.Errorf("it redirects more than %d times", maxRedirects)
	}
	return nil
}

// Validators are the ETag and Last-Modified headers of the version of a text that is known.
type validators struct{ tag, modified string }

// An answer is a text, or says that the version whose validators were sent is still current.
type answer struct {
	data      []byte
	unchanged bool
	validators
}

// get requests one URL, and reads at most limit bytes of the body.
func (c *client) get(ctx context.Context, name string, limit int, known validators) (a answer, err error) {
	request, err := nethttp.NewRequestWithContext(ctx, nethttp.MethodGet, name, nil)
	if err != nil {
		return answer{}, err
	}
	set := func(key, value string) {
		if value != "" {
			request.Header.Set(key, value)
		}
	}
	set("User-Agent", c.UserAgent)
	set("Accept-Encoding", "identity") // a small compressed answer could expand without bound
	set("If-None-Match", known.tag)
	set("If-Modified-Since", known.modified)
	if c.bearer != "" {
		set("Authorization", "Bearer "+c.bearer)
	}
	response, err := c.http.Do(request)
	if err != nil {
		return answer{}, c.reason(err)
	}
	defer response.Body.Close()
	if response.StatusCode == nethttp.StatusNotModified && known != (validators{}) {
		return answer{unchanged: true, validators: known}, nil
	}
	if err := acceptable(response, limit); err != nil {
		return answer{}, err
	}
	a.data, err = io.ReadAll(io.LimitReader(response.Body, int64(limit)+1))
	switch {
	case err != nil:
		return answer{}, c.reason(fmt.Errorf("reading the answer: %w", err))
	case len(a.data) > limit:
		return answer{}, tooLarge(limit)
	case len(a.data) == 0:
		return answer{}, errors.New("the answer is empty")
	}
	if !justModified(response.Header) {
		a.tag, a.modified = validator(response.Header.Get("ETag")), validator(response.Header.Get("Last-Modified"))
	}
	return a, nil
}

// justModified reports whether a text is so new that it may change again without new validators. Servers derive validators
// from the modification time of the file, in seconds, and often from its size.
func justModified(header nethttp.Header) bool {
	modified, err := nethttp.ParseTime(header.Get("Last-Modified"))
	now, err2 := nethttp.ParseTime(header.Get("Date"))
	return err == nil && err2 == nil && now.Sub(modified) < 2*time.Second
}

// acceptable returns an error if the body of a response must not be read.
func acceptable(r *nethttp.Response, limit int) error {
	kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	switch {
	case r.StatusCode != nethttp.StatusOK:
		return &statusError{r.StatusCode, retryAfter(r.Header.Get("Retry-After"))}
	case r.Header.Get("Content-Encoding") != "" && r.Header.Get("Content-Encoding") != "identity":
		return errors.New("the answer is compressed, which was not asked for")
	case kind == "text/html":
		return errors.New("the answer is a page of HTML")
	case r.ContentLength < 0 && len(r.TransferEncoding) == 0:
		return errors.New("the answer does not say how long it is, so it may be cut off")
	case r.ContentLength > int64(limit):
		return tooLarge(limit)
	}
	return nil
}

func tooLarge(limit int) error {
	return fmt.Errorf("the answer has more than %d bytes", limit)
}

// validator returns the value of a validator header, or nothing if it is too long to be sent back.
func validator(text string) string {
	if len(text) > maxTag {
		return ""
	}
	return text
}

// reason returns the cause of a failed request without its URL, because the caller adds the URL.
func (c *client) reason(err error) error {
	if e, ok := errors.AsType[timeout](err); ok && e.Timeout() {
		return fmt.Errorf("no complete answer within %v", c.Timeout)
	}
	if e, ok := errors.AsType[*url.Error](err); ok {
		err = e.Err
	}
	return brief(err)
}

// A timeout is an error that can report a timeout, such as net.Error.
type timeout interface {
	error
	Timeout() bool
}

// A statusError is a response with a status other than 200.
type statusError struct {
	code  int
	leave time.Duration // how long to wait, as Retry-After says; 0: it does not
}

// Error implements error.
func (e *statusError) Error() string {
	return strings.TrimSpace(fmt.Sprintf("the server answers %d %s", e.code, nethttp.StatusText(e.code)))
}

// retryAfter parses a Retry-After header in seconds. It returns 0 for a date.
func retryAfter(text string) time.Duration {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return 0
	}
	return time.Duration(n) * time.Second
}

// reading implements remote.Reading. No error is an answer. The Retry-After of a busy server is honored.
func reading(err error) (answer bool, leave time.Duration) {
	if e, ok := errors.AsType[*statusError](err); ok {
		return false, e.leave
	}
	return false, 0
}
