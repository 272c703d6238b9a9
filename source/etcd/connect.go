package etcd

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/grpclog"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/disk"
)

// The gRPC library logs connection problems to standard error. The returned errors already contain them.
func init() { grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, io.Discard)) }

const (
	dialWait = 3 * time.Second

	// TCP keepalive starts after 2 s, with a probe every second, so a silently cut connection fails within 5 s. It does not
	// load the member. The pings of the gRPC library, at most one every 10 s, detect members that hang.
	aliveIdle, aliveEvery, aliveCount = 2 * time.Second, time.Second, 3
	pingEvery, pingWait               = 10 * time.Second, 3 * time.Second

	maxCertificates = 1 << 20 // size of a certificate or key file, in bytes
	maxHeaders      = 64 << 10
	maxSlack        = 1 << 20  // bytes of an answer in addition to one text of the maximum size
	leastAnswer     = 16 << 20 // far more than etcd sends in one message by default
)

// A member is a connection to a member of the cluster.
type member struct {
	*grpc.ClientConn
	failure *failure
	token   string
	refused bool // a call was refused, possibly because the token has expired
}

// maxAnswer returns the maximum size of an answer, in bytes.
func (f *Fetcher) maxAnswer() int { return max(f.MaxSize, leastAnswer) + maxSlack }

// connect creates a connection, and logs in if there is a user name. It reads the certificates each time, so that renewed ones
// are used.
func (f *Fetcher) connect(ctx context.Context, endpoint string) (*member, error) {
	u, err := url.Parse(endpoint)
	if err != nil {
		return nil, err
	}
	why := &failure{TransportCredentials: insecure.NewCredentials()}
	if u.Scheme == "https" {
		if why.TransportCredentials, err = f.credentials(); err != nil {
			return nil, err
		}
	}
	conn, err := grpc.NewClient("passthrough:///"+u.Host,
		grpc.WithTransportCredentials(why), grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			conn, err := f.dial(ctx, addr)
			return conn, why.record(err)
		}),
		grpc.WithNoProxy(), grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(), grpc.WithUserAgent("svcproxy"),
		grpc.WithMaxHeaderListSize(maxHeaders), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(f.maxAnswer())),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: dialWait}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingEvery, Timeout: pingWait}))
	if err != nil {
		return nil, err
	}
	m := &member{ClientConn: conn, failure: why}
	if f.Username != "" {
		if err = f.login(ctx, m); err != nil {
			_ = m.Close()
			return nil, err
		}
	}
	return m, nil
}

// credentials reads the certificate files.
func (f *Fetcher) credentials() (credentials.TransportCredentials, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if f.CAFile != "" {
		text, _, err := disk.ReadContent(f.CAFile, maxCertificates)
		if err != nil {
			return nil, fmt.Errorf("reading ca_file: %w", err)
		}
		if config.RootCAs = x509.NewCertPool(); !config.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("reading ca_file: %s has no certificate", f.CAFile)
		}
	}
	if f.CertFile != "" {
		cert, _, err := disk.ReadContent(f.CertFile, maxCertificates)
		if err != nil {
			return nil, fmt.Errorf("reading cert_file: %w", err)
		}
		key, _, err := disk.ReadContent(f.KeyFile, maxCertificates)
		if err != nil {
			return nil, fmt.Errorf("reading key_file: %w", err)
		}
		own, err := tls.X509KeyPair(cert, key)
		if err != nil {
			return nil, fmt.Errorf("reading cert_file and key_file: %w", err)
		}
		config.Certificates = []tls.Certificate{own}
	}
	return credentials.NewTLS(config), nil
}

// login sets the token that m sends with each request. It reuses the token of the last login until a member refuses it, because
// a login costs the member much processor time.
func (f *Fetcher) login(ctx context.Context, m *member) error {
	if f.token == "" {
		password, err := f.Password()
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, answerWait)
		defer cancel()
		answer, err := pb.NewAuthClient(m.ClientConn).Authenticate(ctx, &pb.AuthenticateRequest{Name: f.Username, Password: password})
		if err != nil {
			return fmt.Errorf("logging in as %s: %w", f.Username, m.explain(err))
		}
		f.token = answer.GetToken()
	}
	m.token = f.token
	return nil
}

// outgoing adds metadata to a request: the token, and the demand that a member without a leader fails instead of answering
// alone.
func (m *member) outgoing(ctx context.Context) context.Context {
	with := []string{rpctypes.MetadataRequireLeaderKey, rpctypes.MetadataHasLeader}
	if m.token != "" {
		with = append(with, rpctypes.TokenFieldNameGRPC, m.token)
	}
	return metadata.AppendToOutgoingContext(ctx, with...)
}

// explain returns the error of a call as a short, printable text. It sets m.refused if the token may have expired.
func (m *member) explain(err error) error {
	if err == nil {
		return nil
	}
	s := status.Convert(err)
	m.refused = m.refused || s.Code() == codes.Unauthenticated || s.Code() == codes.InvalidArgument || s.Code() == codes.PermissionDenied
	if why := m.failure.last(); why != nil && (s.Code() == codes.Unavailable || s.Code() == codes.DeadlineExceeded) {
		return why
	}
	if s.Code() == codes.DeadlineExceeded {
		return fmt.Errorf("no answer within %s", answerWait)
	}
	return errors.New(bounded(strings.Trim(strings.TrimPrefix(s.Message(), "connection error: desc = "), `"`)))
}

// bounded shortens and escapes a text from a member.
func bounded(text string) string {
	const most = 300
	if len(text) > most {
		text = text[:most] + "…"
	}
	return source.Printable(text)
}

// A failure records why a connection failed last, because the library only reports it within a long text. It wraps the
// credentials of the connection, so that it sees the result of the TLS handshake.
type failure struct {
	credentials.TransportCredentials

	mu  sync.Mutex
	err error
}

func (w *failure) last() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// record records the result of a step of connecting, and returns it.
func (w *failure) record(err error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err = err
	return err
}

// dial opens a TCP connection to a member, with keepalive.
func dial(ctx context.Context, addr string) (net.Conn, error) {
	d := net.Dialer{Timeout: dialWait, KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: aliveIdle, Interval: aliveEvery, Count: aliveCount}}
	return d.DialContext(ctx, "tcp", addr)
}

// ClientHandshake implements credentials.TransportCredentials.
func (w *failure) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := w.TransportCredentials.ClientHandshake(ctx, authority, raw)
	return conn, info, w.record(err)
}

// Clone implements credentials.TransportCredentials.
func (w *failure) Clone() credentials.TransportCredentials { return w }
