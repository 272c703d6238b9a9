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

// The library logs to the standard error what members do. All of it is in the errors.
func init() { grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, io.Discard)) }

const (
	dialWait = 3 * time.Second

	// The kernel asks for a sign of life after 2 s, each second: a connection that was cut without a word fails within 5 s,
	// and costs the member nothing. The library asks at most each 10 s, and finds members that hang.
	aliveIdle, aliveEvery, aliveCount = 2 * time.Second, time.Second, 3
	pingEvery, pingWait               = 10 * time.Second, 3 * time.Second

	maxCertificates = 1 << 20 // bytes of a file
	maxHeaders      = 64 << 10
	maxSlack        = 1 << 20  // of an answer, beside one text of the largest size
	leastAnswer     = 16 << 20 // far more than etcd sends at once, unless it is told otherwise
)

// A member is a connection to a member of the cluster.
type member struct {
	*grpc.ClientConn
	failure *failure
	token   string
	refused bool // maybe for its token, which expires
}

// maxAnswer is how many bytes an answer has at most.
func (f *Fetcher) maxAnswer() int { return max(f.MaxSize, leastAnswer) + maxSlack }

// connect prepares a connection, and logs in. Certificates and the password are read each time, so that new ones are used.
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

// credentials reads the certificates.
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

// login has m send a token with each request: that of the last login, which costs the member much processor time, until it
// is refused.
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

// outgoing adds what each request has beside: a member that has lost its leader is to say so, not to go on alone.
func (m *member) outgoing(ctx context.Context) context.Context {
	with := []string{rpctypes.MetadataRequireLeaderKey, rpctypes.MetadataHasLeader}
	if m.token != "" {
		with = append(with, rpctypes.TokenFieldNameGRPC, m.token)
	}
	return metadata.AppendToOutgoingContext(ctx, with...)
}

// explain returns the error of a call in short words, which can be shown.
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

// bounded returns what a member says so that it can be shown.
func bounded(text string) string {
	const most = 300
	if len(text) > most {
		text = text[:most] + "…"
	}
	return source.Printable(text)
}

// A failure is why a connection failed last: the library has that in a long text. It is the credentials of the connection.
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

// record records how a step of connecting ended, and returns its error.
func (w *failure) record(err error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err = err
	return err
}

// dial connects to a member.
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
