package healthcheck

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/grpclog"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"svcproxy.dev/svcproxy/source"
)

// remote asks by the health protocol of gRPC.
type remote struct {
	dialer *dialer
	check  *source.HealthCheck
}

func newGRPC(check *source.HealthCheck) (asker, error) {
	return (&remote{newDialer(check), check}).ask, nil
}

// The library logs to the standard error what endpoints do. All of it is in the errors.
func init() { grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, io.Discard)) }

// ask makes a connection each time: a connection that is kept says nothing of whether the
// endpoint takes new ones.
func (r *remote) ask(ctx context.Context, q Question) error {
	var way journey
	conn, err := grpc.NewClient("passthrough:///"+q.At.String(), r.options(ctx, q, &way)...)
	if err != nil {
		return err
	}
	defer conn.Close()
	answer, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: r.check.GRPCService})
	if err != nil {
		return way.explain(err)
	}
	if s := answer.GetStatus(); s != grpc_health_v1.HealthCheckResponse_SERVING {
		return errors.New(s.String())
	}
	return nil
}

func (r *remote) options(ctx context.Context, q Question, way *journey) []grpc.DialOption {
	security := insecure.NewCredentials()
	if r.check.TLS {
		security = newOverTLS(tlsConfig(r.check, q.At, "h2"), way)
	}
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(security),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			conn, err := r.dialer.tcp(ctx, q.At)
			return conn, way.record("answer", err)
		}),
		grpc.WithNoProxy(), grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(), grpc.WithUserAgent("svcproxy"),
		grpc.WithMaxHeaderListSize(maxHeader), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxTalk)),
		grpc.WithReadBufferSize(2 << 10), grpc.WithWriteBufferSize(1 << 10),
	}
	if !r.check.TLS { // else it is the name that the certificate must have
		options = append(options, grpc.WithAuthority(cmp.Or(r.check.Host, q.At.String())))
	}
	return options
}

// A journey is how far a call has come, and what ended it on the way. The library's own
// error has all of that in one long text.
type journey struct {
	mu    sync.Mutex
	doing string // in the words of a status; empty: to connect
	err   error
}

// record sets which step is under way, and why the last one failed, and returns err.
func (j *journey) record(next string, err error) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.doing, j.err = next, err
	return err
}

// explain returns the error of a call in short words.
func (j *journey) explain(err error) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	s := status.Convert(err)
	switch {
	case j.err != nil:
		return j.err
	case s.Code() == codes.DeadlineExceeded:
		return timeoutError(cmp.Or(j.doing, "connect"))
	}
	return fmt.Errorf("%s: %s", s.Code(), s.Message())
}

// overTLS are credentials that note the error of a handshake, and take a server that does not negotiate a protocol
// (ALPN): those of the library refuse it, although what it speaks shows at once.
type overTLS struct {
	credentials.TransportCredentials // what else the library asks of them
	config                           *tls.Config
	way                              *journey
}

func newOverTLS(config *tls.Config, way *journey) *overTLS {
	return &overTLS{credentials.NewTLS(config), config, way}
}

func (o *overTLS) ClientHandshake(ctx context.Context, _ string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	o.way.record("TLS handshake", nil)
	conn := tls.Client(raw, o.config)
	if err := conn.HandshakeContext(ctx); err != nil {
		return nil, nil, o.way.record("answer", handshakeError(err))
	}
	info := credentials.TLSInfo{State: conn.ConnectionState(), CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}}
	return conn, info, o.way.record("answer", nil)
}

func (o *overTLS) Clone() credentials.TransportCredentials { return o }
