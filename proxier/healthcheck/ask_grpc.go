package healthcheck

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
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

// The library logs to the standard error what endpoints do. All of it is in the errors.
func init() { grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, io.Discard)) }

// askGRPC asks by the health protocol of gRPC. It makes a connection each time: one that is kept says nothing of whether
// the endpoint takes new ones.
func askGRPC(ctx context.Context, at netip.AddrPort, check *source.HealthCheck) error {
	way := &journey{TransportCredentials: insecure.NewCredentials()}
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(way),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			conn, err := connect(ctx, check, at)
			return conn, way.record("answer", err)
		}),
		grpc.WithNoProxy(), grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(), grpc.WithUserAgent("svcproxy"),
		grpc.WithMaxHeaderListSize(maxHeader), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxTalk)),
		grpc.WithReadBufferSize(2 << 10), grpc.WithWriteBufferSize(1 << 10),
	}
	if check.TLS {
		way.config = tlsConfig(check, at, "h2")
		way.TransportCredentials = credentials.NewTLS(way.config)
	} else { // with TLS it is the name that the certificate must have
		options = append(options, grpc.WithAuthority(cmp.Or(check.Host, at.String())))
	}
	conn, err := grpc.NewClient("passthrough:///"+at.String(), options...)
	if err != nil {
		return err
	}
	defer conn.Close()
	answer, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: check.GRPCService})
	if err != nil {
		return way.explain(err)
	}
	if s := answer.GetStatus(); s != grpc_health_v1.HealthCheckResponse_SERVING {
		return errors.New(s.String())
	}
	return nil
}

// A journey is how far a call has come, and what ended it on the way: the library's own error has all of that in one long
// text. It is the credentials of the call, which also take a server that does not negotiate a protocol (ALPN): those of
// the library refuse it, although what it speaks shows at once.
type journey struct {
	credentials.TransportCredentials             // what else the library asks of them
	config                           *tls.Config // nil: without TLS

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

func (j *journey) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if j.config == nil {
		return j.TransportCredentials.ClientHandshake(ctx, authority, raw)
	}
	j.record("TLS handshake", nil)
	conn := tls.Client(raw, j.config)
	if err := conn.HandshakeContext(ctx); err != nil {
		return nil, nil, j.record("answer", handshakeError(err))
	}
	info := credentials.TLSInfo{State: conn.ConnectionState(), CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}}
	return conn, info, j.record("answer", nil)
}

func (j *journey) Clone() credentials.TransportCredentials { return j }
