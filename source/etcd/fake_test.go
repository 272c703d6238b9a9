package etcd

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sync/atomic"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"svcproxy.dev/svcproxy/internal/fatal"
)

const testPrefix = "/svcproxy/services/"

// A fake is a server that gives answers which etcd would not give.
type fake struct {
	pb.UnimplementedKVServer
	pb.UnimplementedWatchServer
	pb.UnimplementedAuthServer

	list  func(*pb.RangeRequest) (*pb.RangeResponse, error)
	watch func(send func(*pb.WatchResponse) error) error // nil: confirm the watch, and send no changes

	hangs bool // does not answer progress requests

	lists, logins atomic.Int32
	token         atomic.Value // the valid token, a string; none: any token is valid
}

func (s *fake) Range(ctx context.Context, ask *pb.RangeRequest) (*pb.RangeResponse, error) {
	s.lists.Add(1)
	if token, ok := s.token.Load().(string); ok && !slices.Equal(metadata.ValueFromIncomingContext(ctx, rpctypes.TokenFieldNameGRPC), []string{token}) {
		return nil, rpctypes.ErrGRPCInvalidAuthToken
	}
	return s.list(ask)
}

func (s *fake) Authenticate(_ context.Context, ask *pb.AuthenticateRequest) (*pb.AuthenticateResponse, error) {
	s.token.Store(fmt.Sprintf("%s %s %d", ask.GetName(), ask.GetPassword(), s.logins.Add(1)))
	return &pb.AuthenticateResponse{Token: s.token.Load().(string)}, nil
}

func (s *fake) Watch(stream pb.Watch_WatchServer) error {
	if _, err := stream.Recv(); err != nil {
		return err
	}
	if s.watch != nil {
		if err := s.watch(stream.Send); err != nil {
			return err
		}
	} else if err := stream.Send(&pb.WatchResponse{Header: header(10), Created: true}); err != nil {
		return err
	}
	for {
		if _, err := stream.Recv(); err != nil {
			return nil
		}
		if !s.hangs {
			if err := stream.Send(&pb.WatchResponse{Header: header(10)}); err != nil {
				return err
			}
		}
	}
}

// serve starts the server, and returns options to follow it.
func (s *fake) serve(t testing.TB) Options {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	fatal.If(t, err)
	server := grpc.NewServer(grpc.MaxSendMsgSize(1 << 30))
	pb.RegisterKVServer(server, s)
	pb.RegisterWatchServer(server, s)
	pb.RegisterAuthServer(server, s)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return Options{Endpoints: []string{"http://" + l.Addr().String()}, Prefix: testPrefix, MaxSize: 1 << 20}
}

func header(revision int64) *pb.ResponseHeader {
	return &pb.ResponseHeader{ClusterId: 7, Revision: revision}
}

func kv(name, text string, revision int64) *mvccpb.KeyValue {
	return &mvccpb.KeyValue{Key: []byte(testPrefix + name), Value: []byte(text), ModRevision: revision}
}

// pages answers range requests from these keys, as etcd does.
func pages(kvs ...*mvccpb.KeyValue) func(*pb.RangeRequest) (*pb.RangeResponse, error) {
	return func(ask *pb.RangeRequest) (*pb.RangeResponse, error) {
		answer := &pb.RangeResponse{Header: header(10)}
		for _, kv := range kvs {
			if string(kv.Key) < string(ask.Key) {
				continue
			}
			if len(answer.Kvs) == int(ask.Limit) {
				answer.More = true
				break
			}
			answer.Kvs = append(answer.Kvs, kv)
		}
		return answer, nil
	}
}
