package http

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/url"
	"path"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"aead.dev/minisign"
	"golang.org/x/sync/errgroup"

	"svcproxy.dev/svcproxy/source/remote"
)

const (
	// trustTime is how long 304 answers are believed. After that the site requests the whole text over a new connection.
	// Otherwise a server with wrong validators, or one whose name now resolves to another address, could keep a text stale
	// forever.
	trustTime = 10 * time.Minute

	// tornWait is the delay before the single retry after parts of an answer did not match. An index, its signature and its
	// texts are uploaded one after the other, so a poll may see a mix of two versions.
	tornWait = 300 * time.Millisecond

	// fetchTime is how long a poll fetches texts before it reads the index again, so that a slow server does not hide a newer
	// index.
	fetchTime = time.Minute

	// totalFactor times Options.MaxSize is the maximum size of all texts of one index together.
	totalFactor = 16
)

// A site is one URL of the settings, polled by its own goroutine.
type site struct {
	*Options
	client *client
	url    *url.URL
	name   string
	key    *minisign.PublicKey // nil: signatures are not checked
	again  chan struct{}       // has an element when the URL is to be polled now

	now     content
	mark    mark
	pending map[string]fetched // fetched texts of an index that could not be fetched completely
	known   validators         // of now
	whole   time.Time          // when the text was last transferred completely
}

// A content is what a site last gave. The zero content means that nothing was accepted yet.
type content struct {
	mark    mark
	texts   map[string]fetched
	unknown []string // names of texts that this host keeps as they are, because it is not in their canary share
}

// A fetched is a text and its hash.
type fetched struct {
	data []byte
	sum  [sha256.Size]byte
}

func newSite(o *Options, u *url.URL, key *minisign.PublicKey, m mark, log *slog.Logger) *site {
	return &site{Options: o, client: newClient(o, log), url: u, name: u.String(), key: key, mark: m, again: make(chan struct{}, 1)}
}

// A result is the outcome of one poll.
type result struct {
	name    string
	content *content // nil: unchanged
	err     error
}

// follow polls immediately, and then again and again until ctx ends.
func (s *site) follow(ctx context.Context, results chan<- result) {
	defer s.client.close()
	pacer := remote.NewPacer(min(s.Interval, remote.MostWaitOptional), reading)
	for {
		answered := pacer.Ask(ctx)
		now, err := s.poll(ctx)
		answered(err)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			err = fmt.Errorf("%s: %w", s.name, err)
			s.client.close()
		}
		select {
		case results <- result{s.name, now, err}:
		case <-ctx.Done():
			return
		}
		if err == nil {
			s.wait(ctx)
		}
	}
}

// wait returns when the next poll is due or Reload was called. After Reload the next poll requests the whole text.
func (s *site) wait(ctx context.Context) {
	timer := time.NewTimer(jitter(s.Interval))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.again:
		s.whole = time.Time{}
	case <-ctx.Done():
	}
}

// jitter returns d, changed by up to a tenth at random, so that hosts that were started together do not keep polling
// together.
func jitter(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.9 + 0.2*rand.Float64()))
}

func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// errTorn marks an error that a retry may fix: two parts of an answer may come from different versions.
var errTorn = errors.New("it may be about to change")

// poll returns the new content, or nil if nothing changed.
func (s *site) poll(ctx context.Context) (*content, error) {
	if err := s.client.renew(); err != nil {
		return nil, err
	}
	now, err := s.read(ctx)
	if errors.Is(err, errTorn) {
		sleep(ctx, tornWait)
		now, err = s.read(ctx)
	}
	return now, err
}

// read requests the URL and, if it changed, the texts that its index lists. If any part is refused, nothing changes.
func (s *site) read(ctx context.Context) (*content, error) {
	known := s.known
	if time.Since(s.whole) > s.trust {
		known = validators{}
		s.client.close() // its name may have another address by now
	}
	a, err := s.client.get(ctx, s.name, s.MaxSize, known)
	if err != nil || a.unchanged {
		return nil, err
	}
	next, err := s.accept(ctx, a.data)
	if err != nil {
		return nil, err
	}
	s.known, s.whole = a.validators, time.Now()
	if next != nil {
		s.now, s.mark, s.pending = *next, next.mark, nil
	}
	return next, nil
}

// accept verifies and parses the text of the URL, and fetches the texts that it lists. It returns nil if the text is the one
// in use.
func (s *site) accept(ctx context.Context, data []byte) (*content, error) {
	if s.now.texts != nil && s.now.mark.SHA256 == newMark(false, 0, data, "").SHA256 {
		return nil, nil
	}
	signed, err := s.verify(ctx, data)
	if err != nil {
		return nil, err
	}
	if path.Ext(s.url.Path) == ".toml" {
		return s.acceptText(data, signed)
	}
	list, err := isIndex(data)
	switch {
	case err != nil:
		return nil, err
	case list:
		return s.acceptIndex(ctx, data)
	}
	return s.acceptText(data, signed)
}

// verify fetches and verifies the signature of the URL, and returns when it was made. Without a key it returns 0.
func (s *site) verify(ctx context.Context, data []byte) (uint64, error) {
	if s.key == nil {
		return 0, nil
	}
	a, err := s.client.get(ctx, s.name+signatureSuffix, maxSignature, validators{})
	if err != nil {
		return 0, fmt.Errorf("fetching its signature: %w", err)
	}
	signed, err := verify(s.key, s.name, data, a.data)
	if err != nil {
		return 0, fmt.Errorf("%w (%w)", err, errTorn)
	}
	return signed, nil
}

func (s *site) keyText() string {
	if s.key == nil {
		return ""
	}
	return s.key.String()
}

// acceptText accepts a service file. A service file has no version, so the time of its signature is used as one.
func (s *site) acceptText(data []byte, signed uint64) (*content, error) {
	m := newMark(false, signed, data, s.keyText())
	if s.key != nil && signed == 0 {
		return nil, errors.New("its signature has no timestamp, so an older text could replace it; sign it without -t")
	}
	if err := s.mark.follows(m); err != nil {
		return nil, err
	}
	return &content{mark: m, texts: map[string]fetched{s.name: {data, sha256.Sum256(data)}}}, nil
}

func (s *site) acceptIndex(ctx context.Context, data []byte) (*content, error) {
	ix, err := parseIndex(s.url, data)
	if err != nil {
		return nil, fmt.Errorf("reading the index: %w", err)
	}
	next := &content{mark: newMark(true, ix.version, data, s.keyText())}
	if err := s.mark.follows(next.mark); err != nil {
		return nil, err
	}
	wanted := s.compare(ix, next)
	return next, s.fetch(ctx, wanted, next)
}

// compare adds the texts of an index that are already known to next, and returns the entries to fetch.
func (s *site) compare(ix index, next *content) (wanted []entry) {
	next.texts = make(map[string]fetched, len(ix.entries))
	for _, e := range ix.entries {
		had, some := s.now.texts[e.name]
		waiting := s.pending[e.name]
		switch {
		case some && (had.sum == e.sum || !e.covers(s.Host)):
			next.texts[e.name] = had
		case !e.covers(s.Host):
			next.unknown = append(next.unknown, e.name)
		case waiting.data != nil && waiting.sum == e.sum:
			next.texts[e.name] = waiting
		default:
			wanted = append(wanted, e)
		}
	}
	return wanted
}

// fetch fetches texts and adds them to next. After a failure it requests no more texts, and keeps the fetched ones for the
// next poll.
func (s *site) fetch(ctx context.Context, wanted []entry, next *content) error {
	begun, total := time.Now(), 0
	var mu sync.Mutex
	for _, t := range next.texts {
		total += len(t.data)
	}
	var group errgroup.Group
	var failed atomic.Bool
	group.SetLimit(parallel)
	for i, e := range wanted {
		if i > 0 && time.Since(begun) > s.patience {
			group.Go(func() error {
				return fmt.Errorf("%d of %d texts have not come within %v; fetching them at the next poll", len(wanted)-i, len(wanted), s.patience)
			})
			break
		}
		if failed.Load() {
			break
		}
		group.Go(func() error {
			data, err := s.fetchEntry(ctx, &e)
			if err != nil {
				failed.Store(true)
				return fmt.Errorf("fetching %s: %w", e.name, err)
			}
			mu.Lock()
			defer mu.Unlock()
			if total += len(data); total > totalFactor*s.MaxSize {
				failed.Store(true)
				return errors.New("its texts have more than " + strconv.Itoa(totalFactor*s.MaxSize) + " bytes together")
			}
			next.texts[e.name] = fetched{data, e.sum}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		s.pending = next.texts
		return err
	}
	return nil
}

func (s *site) fetchEntry(ctx context.Context, e *entry) ([]byte, error) {
	a, err := s.client.get(ctx, e.name, s.MaxSize, validators{})
	if err != nil {
		return nil, err
	}
	if sha256.Sum256(a.data) != e.sum {
		return nil, fmt.Errorf("its sha256 differs from the one in the index (%w)", errTorn)
	}
	return a.data, nil
}

// unanswered returns what is unknown before the first answer, as in remote.Set.Unknown. For a JSON URL that is its whole
// directory, because an index could list any text there.
func (s *site) unanswered() string {
	if path.Ext(s.url.Path) == ".json" {
		return dirOf(s.name)
	}
	return s.name
}
