package http

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"aead.dev/minisign"

	"svcproxy.dev/svcproxy/internal/wake"
	"svcproxy.dev/svcproxy/source/disk"
	"svcproxy.dev/svcproxy/source/remote"
)

// Name is the name of the source in settings and units.
const Name = "http"

// Options configure a Fetcher.
type Options struct {
	URLs       []string      // of service files and indexes, as ParseURL accepts them; if several list a text, the first wins
	Interval   time.Duration // between two polls of a URL
	Timeout    time.Duration // of a complete request and answer
	CAFile     string        // path; empty: the certificate authorities of the system
	CertFile   string        // path of a client certificate; empty: none
	KeyFile    string        // path of the key of CertFile
	BearerFile string        // path of a token that is sent to the origins of URLs; empty: none
	PublicKey  string        // minisign key that must have signed each URL; empty: signatures are not checked
	MaxSize    int           // of one answer, in bytes

	Host      string       // name of this host, for canaries
	UserAgent string       // empty: the default of net/http
	StateDir  string       // where the versions of signed URLs are saved; empty: nowhere
	Log       *slog.Logger // nil: none

	trust    time.Duration // 0: trustTime
	patience time.Duration // 0: fetchTime
}

// A Fetcher follows service files on web servers. It implements remote.Fetcher.
type Fetcher struct {
	Options
	disk  *disk.Asker
	again chan struct{}   // has an element when all URLs are to be polled now
	marks map[string]mark // of signed sites, by name
	sites []string        // names, in the order of URLs
	now   map[string]content
	errs  map[string]error
	unset map[string]string // see site.unanswered, by name of the site
	saved bool              // marks are on disk
	said  string            // why marks could not be written, as last logged
}

// New returns a Fetcher. It does nothing until Run is called.
func New(o Options) *Fetcher {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	o.trust, o.patience = cmp.Or(o.trust, trustTime), cmp.Or(o.patience, fetchTime)
	return &Fetcher{Options: o, disk: disk.NewAsker("/"), again: make(chan struct{}, 1)}
}

var _ remote.Fetcher = (*Fetcher)(nil)

// Reload polls each URL now, without validators. URLs that are being retried after a failure keep their schedule.
func (f *Fetcher) Reload() { wake.Once(f.again) }

// Server returns the URLs in a short form for status.
func (f *Fetcher) Server() string {
	switch n := len(f.URLs); n {
	case 0:
		return ""
	case 1:
		return f.URLs[0]
	default:
		return fmt.Sprintf("%s and %d more", f.URLs[0], n-1)
	}
}

// Run implements remote.Fetcher. Each URL is polled by its own goroutine. It returns an error only for invalid options.
func (f *Fetcher) Run(ctx context.Context, give func(remote.Set), report func(error)) error {
	sites, err := f.open()
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	results := make(chan result)
	for _, s := range sites {
		wg.Go(func() { s.follow(ctx, results) })
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-f.again:
			for _, s := range sites {
				wake.Once(s.again)
			}
		case r := <-results:
			f.take(r, give)
			report(f.trouble())
		}
	}
}

// open resets f and returns a site for each URL.
func (f *Fetcher) open() (sites []*site, err error) {
	f.marks, f.saved, f.said = map[string]mark{}, true, ""
	f.sites, f.now, f.errs, f.unset = nil, map[string]content{}, map[string]error{}, map[string]string{}
	var key *minisign.PublicKey
	if f.PublicKey != "" {
		if key, err = ParseKey(f.PublicKey); err != nil {
			return nil, fmt.Errorf("reading public_key of [http]: %w", err)
		}
		f.recall()
	}
	for _, text := range f.URLs {
		u, err := ParseURL(text)
		if err != nil {
			return nil, fmt.Errorf("reading urls of [http]: %s: %w", text, err)
		}
		s := newSite(&f.Options, u, key, f.marks[text], f.Log)
		f.sites, f.unset[text] = append(f.sites, text), s.unanswered()
		sites = append(sites, s)
	}
	return sites, nil
}

// take records the result of one poll, and gives the new set if the content changed.
func (f *Fetcher) take(r result, give func(remote.Set)) {
	f.errs[r.name] = r.err
	if r.content != nil {
		f.now[r.name] = *r.content
		if m := r.content.mark; m.Key != "" {
			f.marks[r.name], f.saved = m, false
		}
	}
	f.record()
	if r.content != nil {
		give(f.set())
	}
}

// recall reads the saved versions of signed URLs. If they cannot be read it logs a warning and accepts any version, because
// otherwise services could never be updated again.
func (f *Fetcher) recall() {
	if f.StateDir == "" {
		return
	}
	marks, err := ask(f, func() (map[string]mark, error) { return loadMarks(f.StateDir) })
	if err != nil {
		f.Log.Warn("cannot read which versions of signed texts were in use; an older one would be accepted", "err", err)
	}
	for _, name := range f.URLs {
		if m, ok := marks[name]; ok {
			f.marks[name] = m
		}
	}
}

// record saves new versions before they are used. While that fails, it tries again at each poll.
func (f *Fetcher) record() {
	if f.saved || f.StateDir == "" {
		return
	}
	marks := maps.Clone(f.marks) // a slow disk may still read it after ask has returned
	_, err := ask(f, func() (struct{}, error) { return struct{}{}, saveMarks(f.StateDir, marks) })
	if err == nil {
		f.saved, f.said = true, ""
		return
	}
	if f.said != err.Error() {
		f.said = err.Error()
		f.Log.Warn("cannot save which versions of signed texts are in use; an older one would be accepted after a restart", "err", err)
	}
}

// ask runs do, which uses the state directory. If the disk does not answer in time, it returns disk.ErrNoAnswer.
func ask[T any](f *Fetcher, do func() (T, error)) (T, error) {
	type answer struct {
		got T
		err error
	}
	f.disk.BeginStep(disk.Patience)
	a, ok := disk.Ask(f.disk, filepath.Join(f.StateDir, marksName), func() (a answer) {
		a.got, a.err = do()
		return a
	})
	if !ok {
		a.err = disk.ErrNoAnswer
	}
	return a.got, a.err
}

// set combines the contents of all sites.
func (f *Fetcher) set() (s remote.Set) {
	taken := map[string]bool{}
	var versions []string
	for _, name := range f.sites {
		c, known := f.now[name]
		if !known {
			s.Partial, s.Unknown = true, append(s.Unknown, f.unset[name])
			continue
		}
		for text, t := range c.texts {
			if !taken[text] {
				taken[text] = true
				s.Texts = append(s.Texts, remote.Text{Name: text, Data: t.data, Signed: c.mark.Key != ""})
			}
		}
		s.Unknown = append(s.Unknown, c.unknown...)
		if c.mark.Index && len(c.texts)+len(c.unknown) == 0 {
			s.Empty = append(s.Empty, name)
		}
		if c.mark.Version != 0 {
			versions = append(versions, fmt.Sprintf("%s %d", path.Base(name), c.mark.Version)) // not a plain number, because it belongs to one URL
		}
	}
	slices.SortFunc(s.Texts, func(a, b remote.Text) int { return cmp.Compare(a.Name, b.Name) })
	s.Version = strings.Join(versions, ", ")
	return s
}

// trouble returns the errors of all sites, or nil.
func (f *Fetcher) trouble() error {
	var all trouble
	for _, name := range f.sites {
		if err := f.errs[name]; err != nil {
			all = append(all, err)
		}
	}
	if len(all) == 0 {
		return nil
	}
	return all
}

// A trouble is the errors of several sites. Its text is one line.
type trouble []error

// Error implements error.
func (t trouble) Error() string {
	words := make([]string, len(t))
	for i, err := range t {
		words[i] = err.Error()
	}
	return strings.Join(words, "; ")
}

// Unwrap returns the errors, for errors.Is.
func (t trouble) Unwrap() []error { return t }
