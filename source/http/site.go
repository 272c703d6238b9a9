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
	// trustTime is for how long a server is believed that a text has not changed. Then the whole text is asked for over a new
	// connection, so that one whose validators are wrong, or that goes on to answer where its name no longer leads, makes
	// nothing stale forever.
	trustTime = 10 * time.Minute

	// tornWait is how long after an answer whose parts do not match they are asked for again, once: an index, its signature
	// and its texts are put on a server one after the other.
	tornWait = 300 * time.Millisecond

	// fetchTime is how long a poll asks for texts before it looks at the index again: a slow server must not keep a newer
	// index from being seen.
	fetchTime = time.Minute

	// totalFactor times the largest answer is the most that all texts of one index may have.
	totalFactor = 16
)

// A site is one URL of the settings. Its goroutine polls it.
type site struct {
	*Options
	client *client
	url    *url.URL
	name   string
	key    *minisign.PublicKey // nil: nothing is signed
	again  chan struct{}       // has an element when the URL is to be asked for now

	now     content
	mark    mark
	pending map[string]fetched // texts of an index that was refused for another of its texts
	known   validators         // of now
	whole   time.Time          // when the text was last read in place of its validators
}

// A content is what was last used of a site. The zero content: nothing was.
type content struct {
	mark    mark
	texts   map[string]fetched
	unknown []string // of texts that are left as they are
}

// A fetched is a text and its hash.
type fetched struct {
	data []byte
	sum  [sha256.Size]byte
}

func newSite(o *Options, u *url.URL, key *minisign.PublicKey, m mark, log *slog.Logger) *site {
	return &site{Options: o, client: newClient(o, log), url: u, name: u.String(), key: key, mark: m, again: make(chan struct{}, 1)}
}

// A result is what became of one poll.
type result struct {
	name    string
	content *content // nil: as before
	err     error
}

// follow polls until ctx ends, at first at once.
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

// wait returns when the next poll is due, or is asked for: then the whole text is.
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

// jitter returns a time that differs from d by up to a tenth, so that hosts that were started together do not ask
// together forever.
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

// errTorn says that an answer may be of another version than the text that names it.
var errTorn = errors.New("it may be about to change")

// poll returns what is new; nil: nothing is.
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

// read asks for the text of the URL and, where it differs, for what it names. What is refused in any part changes nothing.
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

// accept returns what a text of the URL stands for; nil: it is the one of before.
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

// verify returns when the text of the URL was signed.
func (s *site) verify(ctx context.Context, data []byte) (uint64, error) {
	if s.key == nil {
		return 0, nil
	}
	a, err := s.client.get(ctx, s.name+signatureSuffix, maxSignature, validators{})
	if err != nil {
		return 0, fmt.Errorf("asking for its signature: %w", err)
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

// acceptText takes a service file. It has no version of its own, so the time of its signature is the version.
func (s *site) acceptText(data []byte, signed uint64) (*content, error) {
	m := newMark(false, signed, data, s.keyText())
	if s.key != nil && signed == 0 {
		return nil, errors.New("its signature does not say when it was made, so that an older text could take its place; sign it without -t")
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

// compare fills in what is known already of an index, and returns what is to be fetched.
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

// fetch adds texts of the server. After a failure it asks for no more, and keeps those that came for the next try.
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
				return fmt.Errorf("%d of %d texts have not come within %v; asking for them next", len(wanted)-i, len(wanted), s.patience)
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
				return fmt.Errorf("asking for %s: %w", e.name, err)
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
		return nil, fmt.Errorf("it has not the sha256 that the index says (%w)", errTorn)
	}
	return a.data, nil
}

// unanswered returns the names of which nothing is known before the first answer: all that an index could list.
func (s *site) unanswered() string {
	if path.Ext(s.url.Path) == ".json" {
		return dirOf(s.name)
	}
	return s.name
}
