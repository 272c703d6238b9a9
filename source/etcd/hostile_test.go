package etcd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/source/remote"
)

// A list that etcd would not send changes nothing, and the reason is reported.
func TestListIsRefused(t *testing.T) {
	many := make([]*mvccpb.KeyValue, maxKeys+1)
	for i := range many {
		many[i] = kv(fmt.Sprintf("%06d.toml", i), "", 1)
	}
	for name, tt := range map[string]struct {
		list func(*pb.RangeRequest) (*pb.RangeResponse, error)
		want string
	}{
		"another prefix": {pages(&mvccpb.KeyValue{Key: []byte("/svcproxy/services0"), Value: []byte("x")}), "not below the prefix"},
		"before the key": {func(*pb.RangeRequest) (*pb.RangeResponse, error) {
			return &pb.RangeResponse{Header: header(1), Kvs: []*mvccpb.KeyValue{kv("b.toml", "", 1), kv("a.toml", "", 1)}}, nil
		}, "not in order"},
		"the same page again": {func(*pb.RangeRequest) (*pb.RangeResponse, error) {
			return &pb.RangeResponse{Header: header(1), Kvs: []*mvccpb.KeyValue{kv("a.toml", "", 1)}, More: true}, nil
		}, "not in order"},
		"more of nothing": {func(*pb.RangeRequest) (*pb.RangeResponse, error) {
			return &pb.RangeResponse{Header: header(1), More: true}, nil
		}, "without keys"},
		"without a revision": {func(*pb.RangeRequest) (*pb.RangeResponse, error) { return &pb.RangeResponse{}, nil }, "no revision"},
		"pages of two clusters": {func(ask *pb.RangeRequest) (*pb.RangeResponse, error) {
			if ask.Revision == 0 {
				return &pb.RangeResponse{Header: header(1), Kvs: []*mvccpb.KeyValue{kv("a.toml", "", 1)}, More: true}, nil
			}
			return &pb.RangeResponse{Header: &pb.ResponseHeader{ClusterId: 8, Revision: 1}}, nil
		}, "cluster 8"},
		"too many keys":  {pages(many...), "more than 100000 keys"},
		"too large text": {pages(kv("a.toml", "x", 1), kv("b.toml", strings.Repeat("x", 18<<20), 1)), `a.toml\x00" has more than 17825792 bytes`},
		"a long refusal": {func(*pb.RangeRequest) (*pb.RangeResponse, error) {
			return nil, status.Error(codes.Internal, "\x1b[31m"+strings.Repeat("x", 10_000))
		}, `\x1b[31mxx`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := follow(t, (&fake{list: tt.list}).serve(t))
			pace.Until(t, "a report", func() bool { return f.problem() != nil })
			if err := f.problem(); !strings.Contains(err.Error(), tt.want) || len(err.Error()) > 600 {
				t.Errorf("reported %.1000v, want %s", err, tt.want)
			}
			if _, n := f.last(); n > 0 {
				t.Error("it was given")
			}
		})
	}
}

// An answer that etcd would not send ends the watch, and is not used.
func TestWatchIsRefused(t *testing.T) {
	put := func(kv *mvccpb.KeyValue) []*mvccpb.Event { return []*mvccpb.Event{{Kv: kv}} }
	sends := func(answers ...*pb.WatchResponse) func(func(*pb.WatchResponse) error) error {
		return func(send func(*pb.WatchResponse) error) error {
			for _, a := range answers {
				if err := send(a); err != nil {
					return err
				}
			}
			return nil
		}
	}
	for name, tt := range map[string]struct {
		watch func(func(*pb.WatchResponse) error) error
		want  string
	}{
		"another cluster":   {sends(&pb.WatchResponse{Header: &pb.ResponseHeader{ClusterId: 8}, Events: put(kv("b.toml", "2", 11))}), "cluster 8"},
		"an older revision": {sends(&pb.WatchResponse{Header: header(9), Created: true}), "begins at revision 9"},
		"another prefix":    {sends(&pb.WatchResponse{Header: header(11), Events: put(&mvccpb.KeyValue{Key: []byte("/x.toml"), ModRevision: 11})}), "not below the prefix"},
		"no key":            {sends(&pb.WatchResponse{Header: header(11), Events: []*mvccpb.Event{{Kv: &mvccpb.KeyValue{ModRevision: 11}}}}), "not below the prefix"},
		"compaction":        {sends(&pb.WatchResponse{Header: header(11), Canceled: true, CompactRevision: 11}), "revision 11 were compacted"},
		"cancellation":      {sends(&pb.WatchResponse{Header: header(11), Canceled: true, CancelReason: "why\nnot"}), `canceled: why\nnot`},
		"empty parts without end": {func(send func(*pb.WatchResponse) error) error {
			for {
				if err := send(&pb.WatchResponse{Header: header(11), Fragment: true}); err != nil {
					return err
				}
			}
		}, "parts of one revision have more than 67108864 bytes"},
		"parts without end": {func(send func(*pb.WatchResponse) error) error {
			for {
				part := &pb.WatchResponse{Header: header(11), Fragment: true}
				for range 1000 {
					part.Events = append(part.Events, put(kv("a.toml", strings.Repeat("x", 1000), 11))...)
				}
				if err := send(part); err != nil {
					return err
				}
			}
		}, "more than 67108864 bytes"},
		"order": {sends(&pb.WatchResponse{Header: header(12), Fragment: true, Events: put(kv("b.toml", "", 12))},
			&pb.WatchResponse{Header: header(12), Events: put(kv("b.toml", "", 11))}), "revision 11 comes after 12"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := follow(t, (&fake{list: pages(kv("a.toml", "1", 10)), watch: tt.watch}).serve(t))
			pace.Until(t, "a report", func() bool { return f.problem() != nil })
			if err := f.problem(); !strings.Contains(err.Error(), tt.want) {
				t.Errorf("reported %v, want %s", err, tt.want)
			}
			if s, n := f.last(); n != 1 || len(s.Texts) != 1 {
				t.Errorf("%d Sets, the last one %q", n, words(s))
			}
		})
	}
}

// Events that the list already had are ignored.
func TestListedEventsAreIgnored(t *testing.T) {
	watch := func(send func(*pb.WatchResponse) error) error {
		return errors.Join(
			send(&pb.WatchResponse{Header: header(10), Events: []*mvccpb.Event{{Kv: kv("a.toml", "old", 9)}, {}}}),
			send(&pb.WatchResponse{Header: header(11), Events: []*mvccpb.Event{{Kv: kv("b.toml", "2", 11)}}}))
	}
	f := follow(t, (&fake{list: pages(kv("a.toml", "1", 10)), watch: watch}).serve(t))
	f.wait("a.toml=1", "b.toml=2")
}

// A fragmented revision is given as a whole, together with a revision that came before it.
func TestPartsAreOneSet(t *testing.T) {
	watch := func(send func(*pb.WatchResponse) error) (err error) {
		part := func(fragment bool, name string, revision int64) {
			err = errors.Join(err, send(&pb.WatchResponse{Header: header(revision), Fragment: fragment, Events: []*mvccpb.Event{{Kv: kv(name, "2", revision)}}}))
			time.Sleep(pace.Scale(100 * time.Millisecond))
		}
		part(true, "a.toml", 11)
		part(true, "b.toml", 12)
		part(false, "c.toml", 12)
		part(false, "d.toml", 13)
		return err
	}
	f := follow(t, (&fake{list: pages(kv("a.toml", "1", 10)), watch: watch}).serve(t))
	f.wait("a.toml=2", "b.toml=2", "c.toml=2", "d.toml=2")
	if _, n := f.last(); n != 3 {
		t.Errorf("%d Sets, want 3", n)
	}
}

// Pages become smaller if texts are large.
func TestPagesFitTexts(t *testing.T) {
	var kvs []*mvccpb.KeyValue
	var want []string
	large := strings.Repeat("x", 10<<20)
	for i := range 1000 {
		text := "small"
		if i%100 == 0 {
			text = large
		}
		kvs = append(kvs, kv(fmt.Sprintf("%04d.toml", i), text, 1))
		want = append(want, fmt.Sprintf("%04d.toml=%s", i, text))
	}
	s := &fake{list: pages(kvs...)}
	f := follow(t, s.serve(t))
	f.wait(want...)
	if n := s.lists.Load(); n > 150 {
		t.Errorf("%d requests for 1,000 keys", n)
	}
}

// If watches end immediately, there is a pause before each new list.
func TestFailingWatchIsPaced(t *testing.T) {
	s := &fake{list: pages(kv("a.toml", "1", 10)), watch: func(func(*pb.WatchResponse) error) error { return status.Error(codes.Unavailable, "no") }}
	f := follow(t, s.serve(t))
	time.Sleep(3 * time.Second)
	f.end()
	if n := s.lists.Load(); n < 2 || n > 9 {
		t.Errorf("%d lists in 3 s, want some 4", n)
	}
	if _, n := f.last(); n != 1 {
		t.Errorf("the same texts were given %d times", n)
	}
}

// If all members are down, each report has the same text, so that it is logged only once.
func TestFailuresStayTheSame(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
	defer cancel()
	reports := map[string]int{}
	o := Options{Prefix: testPrefix, MaxSize: 1 << 20, dial: func(_ context.Context, addr string) (net.Conn, error) { return nil, errors.New("no way to " + addr) }}
	for i := range 3 {
		o.Endpoints = append(o.Endpoints, fmt.Sprintf("http://10.0.0.%d:2379", i))
	}
	fatal.If(t, New(o).Run(ctx, func(remote.Set) { t.Error("something was given") }, func(err error) { reports[err.Error()]++ }))
	if len(reports) != len(o.Endpoints) {
		t.Errorf("%d different reports: %v", len(reports), reports)
	}
}

// A session with a member whose watch hangs ends. A session in which nothing changes continues.
func TestHangingWatchIsLeft(t *testing.T) {
	for _, hangs := range []bool{false, true} {
		s := &fake{list: pages(kv("a.toml", "1", 10)), hangs: hangs}
		o := s.serve(t)
		o.progress = 50 * time.Millisecond
		if hangs {
			f := follow(t, o)
			pace.Until(t, "a report", func() bool { return f.problem() != nil })
			if err := f.problem(); !strings.Contains(err.Error(), "no answer within 50ms") {
				t.Error(err)
			}
			continue
		}
		o.progress = pace.Scale(500 * time.Millisecond)
		f := follow(t, o)
		f.waitAnswer()
		time.Sleep(4 * o.progress)
		if err := f.problem(); err != nil || s.lists.Load() != 1 {
			t.Errorf("%d lists: %v", s.lists.Load(), err)
		}
	}
}

// A refused answer is not requested again immediately, because it is large, or not from etcd.
func TestRefusedListIsSpared(t *testing.T) {
	s := &fake{list: func(*pb.RangeRequest) (*pb.RangeResponse, error) { return &pb.RangeResponse{}, nil }}
	f := follow(t, s.serve(t))
	time.Sleep(3 * time.Second)
	f.end()
	if n := s.lists.Load(); n != 1 {
		t.Errorf("%d lists in 3 s", n)
	}
}

// A login is used for all sessions until it is refused. The next login uses the current password.
func TestLoginIsUsedUntilRefused(t *testing.T) {
	watch := func(send func(*pb.WatchResponse) error) error {
		return errors.Join(send(&pb.WatchResponse{Header: header(10), Created: true}), status.Error(codes.Unavailable, "again"))
	}
	s := &fake{list: pages(kv("a.toml", "1", 10)), watch: watch}
	o, passwords := s.serve(t), atomic.Int32{}
	o.Username, o.Password = "host", func() (string, error) { return fmt.Sprint("password", passwords.Add(1)), nil }
	f := follow(t, o)
	pace.Until(t, "several sessions", func() bool { return s.lists.Load() >= 3 })
	if n := s.logins.Load(); n != 1 {
		t.Errorf("%d logins for %d sessions", n, s.lists.Load())
	}
	s.token.Store("another")
	pace.Until(t, "another login", func() bool { return s.logins.Load() == 2 })
	seen := s.lists.Load()
	pace.Until(t, "a session with it", func() bool { return s.lists.Load() >= seen+2 })
	f.end()
	if token := s.token.Load(); token != "host password2 2" {
		t.Errorf("token %q", token)
	}
}

// Run ends without waiting for a member that hangs, at whatever step it hangs.
func TestEndsWhileServerHangs(t *testing.T) {
	hang := make(chan struct{})
	t.Cleanup(func() { close(hang) })
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	fatal.If(t, err)
	defer silent.Close() // connections wait in its backlog
	connects := func(scheme, user string) Options {
		return Options{Endpoints: []string{scheme + "://" + silent.Addr().String()}, Prefix: testPrefix, MaxSize: 1 << 20,
			Username: user, Password: func() (string, error) { return "x", nil }}
	}
	lists := (&fake{list: func(*pb.RangeRequest) (*pb.RangeResponse, error) { <-hang; return nil, errors.New("end") }}).serve(t)
	watches := (&fake{list: pages(), watch: func(func(*pb.WatchResponse) error) error { <-hang; return nil }}).serve(t)
	for name, o := range map[string]Options{
		"connecting": connects("http", ""), "handshake": connects("https", ""), "login": connects("http", "user"), "list": lists, "watch": watches,
	} {
		t.Run(name, func(t *testing.T) {
			f := follow(t, o)
			time.Sleep(300 * time.Millisecond)
			begin := time.Now()
			f.end()
			if took := time.Since(begin); took > pace.Scale(500*time.Millisecond) {
				t.Errorf("it ended after %v", took)
			}
		})
	}
}

// Answers without changes, however many, do not add to the size of the next change.
func TestLongIdle(t *testing.T) {
	f := New(Options{Prefix: testPrefix})
	w := &watcher{Fetcher: f, from: 10, pending: newChanges(testPrefix)}
	gave := 0
	give := func(remote.Set) { gave++ }
	answer := func(a *pb.WatchResponse) {
		t.Helper()
		fatal.If(t, w.record(a))
		fatal.If(t, w.commit(give))
	}
	for range maxBytes/answerOverhead + 1 {
		answer(&pb.WatchResponse{Header: header(10)})
	}
	answer(&pb.WatchResponse{Header: header(11), Fragment: true, Events: []*mvccpb.Event{{Kv: kv("a.toml", "1", 11)}}})
	answer(&pb.WatchResponse{Header: header(11), Events: []*mvccpb.Event{{Kv: kv("b.toml", "1", 11)}}})
	if gave != 1 {
		t.Errorf("%d Sets", gave)
	}
}
