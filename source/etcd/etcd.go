package etcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"svcproxy.dev/svcproxy/source/remote"
)

// Name is the name of the source in settings and units, and the prefix of the names of texts.
const Name = "etcd"

// Options configure a Fetcher.
type Options struct {
	Endpoints                 []string // URLs of members: http or https, host and port
	Prefix                    string   // of keys; it begins and ends with /
	CAFile, CertFile, KeyFile string   // read for each connection; empty: the authorities of the system, no client certificate
	Username                  string   // empty: no login
	Password                  func() (string, error)
	MaxSize                   int // maximum size of a text, in bytes; larger texts may be given, and the caller refuses them
	Log                       *slog.Logger

	dial     func(ctx context.Context, addr string) (net.Conn, error) // nil: dial
	progress time.Duration                                            // 0: progressEvery
}

// A Fetcher follows an etcd cluster. It implements remote.Fetcher.
type Fetcher struct {
	Options

	token string // of the last login; empty: log in
	seen  seen

	given    bool // contents were given
	contents contents
	warned   string // the last warning about keys that are not service files
}

// New returns a Fetcher. It does nothing until Run is called.
func New(o Options) *Fetcher {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.dial == nil {
		o.dial = dial
	}
	o.progress = cmp.Or(o.progress, progressEvery)
	return &Fetcher{Options: o}
}

// Server returns the endpoints for status.
func (f *Fetcher) Server() string { return strings.Join(f.Endpoints, ", ") }

// stable is how long a session must last to be treated as a success, which resets the retry delay.
const stable = 10 * time.Second

// refusedWait is the retry delay after a refused answer. It is long because such an answer is large, or not from etcd.
const refusedWait = 30 * time.Second

// A refusal is the error of an answer that must not be used.
type refusal struct{ error }

func refuse(format string, args ...any) error { return refusal{fmt.Errorf(format, args...)} }

// Unwrap implements errors.
func (r refusal) Unwrap() error { return r.error }

// Run implements remote.Fetcher.
func (f *Fetcher) Run(ctx context.Context, give func(remote.Set), report func(error)) error {
	if len(f.Endpoints) == 0 {
		report(errors.New("no member of etcd is named: set endpoints under [etcd]"))
		<-ctx.Done()
		return nil
	}
	pace := remote.NewPacer(remote.MostWait, func(err error) (bool, time.Duration) {
		if _, refused := errors.AsType[refusal](err); refused {
			return false, refusedWait
		}
		return false, 0
	})
	failed := make([]error, len(f.Endpoints))
	answered := func() {
		clear(failed)
		report(nil)
	}
	for next := rand.IntN(len(failed)); ; next = (next + 1) % len(failed) {
		done := pace.Ask(ctx)
		if ctx.Err() != nil {
			return nil
		}
		begin := time.Now()
		err := f.session(ctx, f.Endpoints[next], give, answered)
		if ctx.Err() != nil {
			return nil
		}
		failed[next] = err
		report(joined(failed))
		if time.Since(begin) >= stable {
			done(nil)
		}
		done(err)
	}
}

// joined combines the errors of all members into one, so that the text does not alternate while the errors stay the same.
func joined(failed []error) error {
	const shown = 3
	failed = slices.DeleteFunc(slices.Clone(failed), func(err error) bool { return err == nil })
	var words []string
	for _, err := range failed[:min(shown, len(failed))] {
		words = append(words, err.Error())
	}
	if more := len(failed) - shown; more > 0 {
		words = append(words, fmt.Sprintf("and %d more members", more))
	}
	return errors.New(strings.Join(words, "; "))
}

// session follows one member, and returns why it ended. It calls answered after each answer of the watch, but not after the
// list, because a list alone is soon out of date.
func (f *Fetcher) session(ctx context.Context, endpoint string, give func(remote.Set), answered func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	m, err := f.connect(ctx, endpoint)
	if err != nil {
		return fmt.Errorf("connecting to %s: %w", endpoint, err)
	}
	defer m.Close()
	defer func() {
		if m.refused {
			f.token = ""
		}
	}()
	l, err := f.list(ctx, m)
	if err != nil {
		return fmt.Errorf("listing %s at %s: %w", f.Prefix, endpoint, err)
	}
	f.takeList(l, give)
	if err := f.watch(ctx, m, give, answered); err != nil {
		return fmt.Errorf("watching %s at %s: %w", f.Prefix, endpoint, err)
	}
	return nil
}

// takeList gives the listed texts, unless the same cluster has already sent the same texts.
func (f *Fetcher) takeList(l listing, give func(remote.Set)) {
	known := f.given && l.cluster == f.seen.cluster && l.revision >= f.seen.revision && f.contents.equal(&l.contents)
	f.seen, f.contents = l.seen, l.contents
	f.warnOfOthers()
	if !known {
		f.give(give)
	}
}

// give calls give with the current contents.
func (f *Fetcher) give(give func(remote.Set)) {
	f.given = true
	give(remote.Set{Version: strconv.FormatInt(f.seen.revision, 10), Counter: fmt.Sprintf("cluster %x", f.seen.cluster), Texts: f.contents.texts})
}

var _ remote.Fetcher = (*Fetcher)(nil)
