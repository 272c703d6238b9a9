//go:build netns

package etcd

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"svcproxy.dev/svcproxy/internal/pace"
)

// The existing texts are given at once. After that, each transaction is one Set.
func TestFollow(t *testing.T) {
	s := newServer(t)
	s.commit(put("b.toml", "1"), put("a.json", "{}"), put("readme", "x"))
	f := follow(t, s.options())
	f.wait("a.json={}", "b.toml=1")
	s.commit(put("b.toml", "2"), put("c/d.toml", "3"), remove("a.json"))
	f.wait("b.toml=2", "c/d.toml=3")
	s.commit(put("b.toml", "2"), put("other", "x"))
	s.commit(put("b.toml", "3"))
	f.wait("b.toml=3", "c/d.toml=3")
	if _, n := f.last(); n != 3 {
		t.Errorf("%d Sets, want 3", n)
	}
}

// A transaction of 200 keys, larger than one message of etcd, is one Set.
func TestTransactionIsOneSet(t *testing.T) {
	s := newServer(t, "--max-request-bytes", "33554432")
	f := follow(t, s.options())
	s.commit(put("0.toml", ""))
	f.wait("0.toml=")
	for round, size := range []int{100, 60_000} {
		var ops []*pb.RequestOp
		for i := range 200 {
			ops = append(ops, put(fmt.Sprintf("%d.toml", i), fmt.Sprintf("%d %0*d", round, size, i)))
		}
		_, before := f.last()
		s.commit(ops...)
		pace.Until(t, "new texts", func() bool { _, n := f.last(); return n > before })
		time.Sleep(pace.Scale(100 * time.Millisecond))
		set, n := f.last()
		if n != before+1 {
			t.Errorf("%d bytes each: %d Sets for one transaction", size, n-before)
		}
		for _, text := range set.Texts {
			if text.Data[0] != byte('0'+round) {
				t.Errorf("%d bytes each: %s is of another transaction", size, text.Name)
			}
		}
	}
}

// An answer of the default maximum size of etcd is accepted even if MaxSize is small.
func TestSmallTextsInLargeAnswers(t *testing.T) {
	s := newServer(t)
	o := s.options()
	o.MaxSize = 64 << 10
	var dials atomic.Int32
	o.dial = func(ctx context.Context, addr string) (net.Conn, error) {
		dials.Add(1)
		return s.dialHost(ctx, addr)
	}
	s.commit(put("0.toml", ""))
	f := follow(t, o)
	f.wait("0.toml=")
	f.waitAnswer()
	var ops []*pb.RequestOp
	var want []string
	for i := range 25 {
		text := strings.Repeat("x", 60_000)
		ops, want = append(ops, put(fmt.Sprintf("%d.toml", i), text)), append(want, fmt.Sprintf("%d.toml=%s", i, text))
	}
	s.commit(ops...)
	f.wait(want...)
	if n := dials.Load(); n != 1 {
		t.Errorf("%d connections, want the watch of the first one to go on", n)
	}
}
