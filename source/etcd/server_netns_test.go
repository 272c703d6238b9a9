//go:build netns

package etcd

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/netutil/netnstest"
)

var (
	serverAddr = netip.MustParsePrefix("192.0.2.1/24")
	hostAddr   = netip.MustParsePrefix("192.0.2.2/24")
)

// A server is an etcd with one member in its own namespace. The host is in another namespace that can reach it.
type server struct {
	t            testing.TB
	ns, host     *netnstest.Namespace
	dir, scheme  string
	args         []string
	etcd         *netnstest.Process
	incarnations int
}

// newServer starts etcd with options.
func newServer(t testing.TB, args ...string) *server {
	s := prepareServer(t, args...)
	s.start()
	return s
}

// prepareServer prepares a server without starting etcd.
func prepareServer(t testing.TB, args ...string) *server {
	s := &server{t: t, ns: netnstest.Make(t), host: netnstest.Make(t), dir: t.TempDir(), scheme: "http", args: args}
	fatal.If(t, netnstest.Veth(s.ns, "eth0", s.host, "eth0"))
	fatal.If(t, s.ns.SetUp("eth0", serverAddr))
	fatal.If(t, s.host.SetUp("eth0", hostAddr))
	return s
}

func (s *server) url() string { return s.scheme + "://192.0.2.1:2379" }

func (s *server) data() string { return filepath.Join(s.dir, fmt.Sprintf("data%d", s.incarnations)) }

// start starts etcd with its existing data.
func (s *server) start() {
	s.t.Helper()
	cmd := exec.CommandContext(context.WithoutCancel(s.t.Context()), "etcd", append([]string{
		"--data-dir", s.data(), "--listen-client-urls", s.url(), "--advertise-client-urls", s.url(), "--max-txn-ops", "1000", "--unsafe-no-fsync",
	}, s.args...)...)
	var err error
	s.etcd, err = s.ns.Launch(cmd, filepath.Join(s.dir, "log"))
	fatal.If(s.t, err)
	s.t.Cleanup(func() { _ = s.etcd.Kill() })
}

// kill kills etcd with SIGKILL.
func (s *server) kill() {
	s.t.Helper()
	if err := s.etcd.End(unix.SIGKILL, pace.Scale(answerWait)); err != nil && !strings.Contains(err.Error(), "killed") {
		s.t.Fatal(err)
	}
}

// dialHost connects from the namespace of the host.
func (s *server) dialHost(ctx context.Context, addr string) (conn net.Conn, err error) {
	err = s.host.Do(func() error {
		conn, err = dial(ctx, addr)
		return err
	})
	return conn, err
}

// dialIn connects from the namespace of etcd, which cut does not affect.
func (s *server) dialIn(ctx context.Context, addr string) (conn net.Conn, err error) {
	err = s.ns.Do(func() error {
		conn, err = dial(ctx, addr)
		return err
	})
	return conn, err
}

// options returns the options of a host.
func (s *server) options() Options {
	return Options{Endpoints: []string{s.url()}, Prefix: testPrefix, MaxSize: 16 << 20, dial: s.dialHost}
}

// admin performs an action as the administrator of etcd, once etcd answers.
func (s *server) admin(do func(context.Context, *member) error) {
	s.t.Helper()
	o := s.options()
	o.dial = s.dialIn
	fatal.If(s.t, pace.Poll(answerWait, func() error {
		ctx, cancel := context.WithTimeout(s.t.Context(), answerWait)
		defer cancel()
		m, err := New(o).connect(ctx, o.Endpoints[0])
		if err != nil {
			return err
		}
		defer m.Close()
		return m.explain(do(ctx, m))
	}))
}

// commit performs operations in one transaction, and returns its revision.
func (s *server) commit(ops ...*pb.RequestOp) (revision int64) {
	s.t.Helper()
	s.admin(func(ctx context.Context, m *member) error {
		answer, err := pb.NewKVClient(m).Txn(m.outgoing(ctx), &pb.TxnRequest{Success: ops})
		revision = answer.GetHeader().GetRevision()
		return err
	})
	return revision
}

func put(name, text string) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: []byte(testPrefix + name), Value: []byte(text)}}}
}

func remove(name string) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: &pb.DeleteRangeRequest{Key: []byte(testPrefix + name)}}}
}

// removeAll removes every key below the prefix.
func removeAll() *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: &pb.DeleteRangeRequest{Key: []byte(testPrefix), RangeEnd: rangeEnd(testPrefix)}}}
}

// compact removes the history before a revision.
func (s *server) compact(revision int64) {
	s.t.Helper()
	s.admin(func(ctx context.Context, m *member) error {
		_, err := pb.NewKVClient(m).Compact(m.outgoing(ctx), &pb.CompactionRequest{Revision: revision, Physical: true})
		return err
	})
}

// cut drops all packets between the host and etcd; heal ends that.
func (s *server) cut() {
	s.t.Helper()
	for _, chain := range []string{"INPUT", "OUTPUT"} {
		_, err := s.host.Run("iptables", "-w", "-A", chain, "-j", "DROP")
		fatal.If(s.t, err)
	}
}

func (s *server) heal() {
	s.t.Helper()
	_, err := s.host.Run("iptables", "-w", "-F")
	fatal.If(s.t, err)
}

// etcdctl runs etcdctl in the namespace of etcd.
func (s *server) etcdctl(args ...string) string {
	s.t.Helper()
	out, err := s.ns.Run("etcdctl", append([]string{"--endpoints", s.url()}, args...)...)
	fatal.If(s.t, err)
	return string(bytes.TrimSpace([]byte(out)))
}
