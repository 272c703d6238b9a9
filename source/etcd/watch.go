package etcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"svcproxy.dev/svcproxy/source/remote"
)

// progressEvery is how often a member is asked for the progress of its watch. If it has not answered by the next time, the
// session ends: a member may answer pings although its watches hang.
const progressEvery = 30 * time.Second

// mostMerged is how many bytes of answers are merged into one Set. A single revision may have more.
const mostMerged = 16 << 20

// maxParts is the maximum size of all fragments of one revision, in bytes. By default etcd accepts 1.5 MiB in a transaction.
const maxParts = 64 << 20

// A watcher processes the answers of one watch.
type watcher struct {
	*Fetcher
	from       int64 // the revision that was listed
	newest     int64 // highest revision of the recorded events
	pending    *changes
	fragmented bool // fragments of a revision are still missing
}

// watch gives the changes after the list, until it fails.
func (f *Fetcher) watch(ctx context.Context, m *member, give func(remote.Set), answered func()) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	late := time.AfterFunc(answerWait, func() { cancel(errors.New("the watch was not confirmed in time")) })
	defer late.Stop()
	stream, err := pb.NewWatchClient(m.ClientConn).Watch(m.outgoing(ctx))
	if err == nil {
		err = stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: &pb.WatchCreateRequest{
			Key: []byte(f.Prefix), RangeEnd: rangeEnd(f.Prefix), StartRevision: f.seen.revision + 1, Fragment: true, ProgressNotify: true,
		}}})
	}
	answers, failed := receive(ctx, stream, err)
	tick := time.NewTicker(f.progress)
	defer tick.Stop()
	w := &watcher{Fetcher: f, from: f.seen.revision, pending: newChanges(f.Prefix)}
	for asked := false; ; {
		select {
		case answer, open := <-answers:
			if !open {
				return cmp.Or(context.Cause(ctx), m.explain(failed()))
			}
			if err := w.take(answer, answers); err != nil {
				return err
			}
			late.Stop()
			answered()
			asked = false
			if err := w.commit(give); err != nil {
				return err
			}
		case <-tick.C:
			if asked {
				return fmt.Errorf("no answer within %s", f.progress)
			}
			asked = true
			_ = stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_ProgressRequest{ProgressRequest: &pb.WatchProgressRequest{}}}) // receive returns the error
		}
	}
}

// receive delivers answers one at a time. While nothing reads the channel, flow control makes the member wait.
func receive(ctx context.Context, stream pb.Watch_WatchClient, err error) (<-chan *pb.WatchResponse, func() error) {
	answers := make(chan *pb.WatchResponse)
	go func() {
		defer close(answers)
		for err == nil {
			var answer *pb.WatchResponse
			if answer, err = stream.Recv(); err != nil {
				return
			}
			select {
			case answers <- answer:
			case <-ctx.Done():
				err = ctx.Err()
			}
		}
	}()
	return answers, func() error { return err }
}

// take records the events of an answer, and of the answers that are already waiting behind it.
func (w *watcher) take(answer *pb.WatchResponse, answers <-chan *pb.WatchResponse) error {
	for {
		if err := w.record(answer); err != nil {
			return err
		}
		if w.pending.bytes >= mostMerged {
			return nil
		}
		select {
		case next, open := <-answers:
			if !open {
				return nil
			}
			answer = next
		default:
			return nil
		}
	}
}

// record records the events of an answer, except those that the list already had.
func (w *watcher) record(answer *pb.WatchResponse) error {
	if err := w.seen.check(answer.GetHeader()); err != nil {
		return err
	}
	revision := answer.GetHeader().GetRevision()
	switch {
	case answer.GetCompactRevision() != 0:
		return fmt.Errorf("changes before revision %d were compacted", answer.GetCompactRevision())
	case answer.GetCanceled():
		w.token = "" // it may have expired
		return fmt.Errorf("it was canceled: %s", bounded(answer.GetCancelReason()))
	case answer.GetCreated() && revision != 0 && revision < w.from:
		return fmt.Errorf("it begins at revision %d, and the list was of %d", revision, w.from)
	}
	w.fragmented = answer.GetFragment()
	if w.pending.bytes += answerOverhead; w.fragmented && w.pending.bytes > maxParts {
		return refuse("the parts of one revision have more than %d bytes", maxParts)
	}
	for _, e := range answer.GetEvents() {
		kv := e.GetKv()
		switch at := kv.GetModRevision(); {
		case at <= w.from:
			continue // the list had it
		case at < w.newest:
			return refuse("revision %d comes after %d", at, w.newest)
		default:
			w.newest = at
		}
		put := w.pending.put
		if e.GetType() == mvccpb.DELETE {
			put = w.pending.remove
		}
		if err := put(kv); err != nil {
			return err
		}
	}
	w.seen.revision = max(w.seen.revision, revision, w.newest)
	return nil
}

// commit gives the recorded changes, unless fragments of the last revision are still missing.
func (w *watcher) commit(give func(remote.Set)) error {
	if w.fragmented {
		return nil
	}
	next, differs, err := w.contents.with(w.pending)
	if err != nil {
		return err
	}
	w.contents, w.pending = next, newChanges(w.Prefix) // even if no answer had an event
	w.warnOfOthers()
	if differs {
		w.give(give)
	}
	return nil
}
