package etcd

import (
	"context"
	"fmt"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// pageKeys is the maximum number of keys in an answer. The list uses smaller pages where texts are large.
const pageKeys = 500

// answerWait is how long a member may take to answer a request.
const answerWait = 10 * time.Second

// A listing is all keys that a member lists, at one revision.
type listing struct {
	seen
	contents
}

// A seen is a cluster and the newest revision that it has sent.
type seen struct {
	cluster  uint64 // 0: unknown, for example behind some proxies
	revision int64
}

func seenOf(h *pb.ResponseHeader) seen { return seen{h.GetClusterId(), h.GetRevision()} }

// check returns an error for an answer of another cluster. It accepts answers without a cluster, which etcd proxies send.
func (s seen) check(h *pb.ResponseHeader) error {
	if id := h.GetClusterId(); id != 0 && s.cluster != 0 && id != s.cluster {
		return fmt.Errorf("the answer is of cluster %x, and the list was of %x", id, s.cluster)
	}
	return nil
}

// rangeEnd returns the key after all keys with a prefix. The prefix must end with /.
func rangeEnd(prefix string) []byte { return []byte(strings.TrimSuffix(prefix, "/") + "0") } // 0 follows / in ASCII

// list lists all keys below the prefix. The read is linearizable: a quorum confirms that the first answer is current.
func (f *Fetcher) list(ctx context.Context, m *member) (listing, error) {
	var l listing
	all := newChanges(f.Prefix)
	ask := &pb.RangeRequest{Key: []byte(f.Prefix), RangeEnd: rangeEnd(f.Prefix), Limit: pageKeys}
	for {
		answer, err := m.page(ctx, ask)
		if isTooLarge(err) && ask.Limit > 1 {
			ask.Limit = max(1, ask.Limit/4)
			continue
		}
		if isTooLarge(err) {
			return l, refuse("the text of the key at or after %s has more than %d bytes", short(string(ask.Key)), f.maxAnswer())
		}
		if err != nil {
			return l, m.explain(err)
		}
		if l.revision == 0 {
			l.seen = seenOf(answer.GetHeader())
			if ask.Revision = l.revision; l.revision <= 0 {
				return l, refuse("the answer has no revision")
			}
		}
		if err := l.check(answer.GetHeader()); err != nil {
			return l, err
		}
		if err := addPage(all, ask, answer.GetKvs()); err != nil {
			return l, err
		}
		if !answer.GetMore() {
			break
		}
		if len(answer.GetKvs()) == 0 {
			return l, refuse("an answer without keys says that there are more")
		}
		ask.Limit = min(pageKeys, 2*ask.Limit)
	}
	var err error
	l.contents, _, err = l.contents.with(all)
	return l, err
}

// page requests one page of a list.
func (m *member) page(ctx context.Context, ask *pb.RangeRequest) (*pb.RangeResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, answerWait)
	defer cancel()
	return pb.NewKVClient(m.ClientConn).Range(m.outgoing(ctx), ask)
}

// addPage records the keys of one page, and sets ask to request the next page.
func addPage(all *changes, ask *pb.RangeRequest, kvs []*mvccpb.KeyValue) error {
	for _, kv := range kvs {
		if string(kv.GetKey()) < string(ask.Key) {
			return refuse("the key %s is not in order", short(string(kv.GetKey())))
		}
		if err := all.put(kv); err != nil {
			return err
		}
		ask.Key = append(kv.GetKey()[:len(kv.GetKey()):len(kv.GetKey())], 0)
	}
	return nil
}

// isTooLarge reports whether an answer exceeded the message size limit. Only the error text of the library shows that.
func isTooLarge(err error) bool {
	return status.Code(err) == codes.ResourceExhausted && strings.Contains(err.Error(), "larger than max")
}
