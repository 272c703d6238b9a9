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

// Name is what the source is called, in settings and in units.
const Name = "http"

// Options say which texts a Fetcher follows, and how.
type Options struct {
	URLs       []string      // of service files and indexes, as ParseURL takes them; the first that has a name has it
	Interval   time.Duration // between two polls of a URL
	Timeout    time.Duration // of one answer as a whole
	CAFile     string        // path; empty: the authorities of the system
	CertFile   string        // path of a client's certificate; empty: none
	KeyFile    string        // path of its key
	BearerFile string        // path of a token that is sent to the origins of URLs; empty: none
	PublicKey  string        // of minisign, which signs each URL; empty: nothing is signed
	MaxSize    int           // of one answer, in bytes

	Host      string       // name of this host, for canaries
	UserAgent string       // empty: Go's
	StateDir  string       // keeps the versions of signed URLs; empty: nothing does
	Log       *slog.Logger // nil: none

	trust    time.Duration // 0: trustTime
	patience time.Duration // 0: fetchTime
}

// A Fetcher follows service files on web servers. It implements remote.Fetcher.
type Fetcher struct {
	Options
	disk  *disk.Asker
	again chan struct{}   // has an element when all URLs are to be asked for now
	marks map[string]mark // of signed sites
	sites []string        // names
	now   map[string]content
	errs  map[string]error
	unset map[string]string // names of which nothing is known before the first answer, by site
	saved bool
	said  string // why marks could not be written, as logged
}

// New returns a Fetcher that does nothing before Run.
func New(o Options) *Fetcher {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	o.trust, o.patience = cmp.Or(o.trust, trustTime), cmp.Or(o.patience, fetchTime)
	return &Fetcher{Options: o, disk: disk.NewAsker("/"), again: make(chan struct{}, 1)}
}

var _ remote.Fetcher = (*Fetcher)(nil)

// Reload has the whole text of each URL asked for now. One that fails is asked for when that is due.
func (f *Fetcher) Reload() { wake.Once(f.again) }

// Server returns what is followed, as status shows it.
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

// Run implements remote.Fetcher. Each URL is polled by a goroutine of its own. Its error says which of the options cannot be used.
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

// open makes the sites.
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

// take takes over what is new of a site.
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

// recall reads the versions of what was signed. That they cannot be read must not keep services as they are forever.
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

// record writes what is new of versions, before it is used, and again at each poll while that fails.
func (f *Fetcher) record() {
	if f.saved || f.StateDir == "" {
		return
	}
	marks := maps.Clone(f.marks) // for a disk that answers later
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

// ask waits for the state directory, and for no disk that does not answer.
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

// set joins what is known of all sites.
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
			versions = append(versions, fmt.Sprintf("%s %d", path.Base(name), c.mark.Version)) // no number: it is of one URL
		}
	}
	slices.SortFunc(s.Texts, func(a, b remote.Text) int { return cmp.Compare(a.Name, b.Name) })
	s.Version = strings.Join(versions, ", ")
	return s
}

// trouble returns what is wrong with any site.
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

// A trouble is the errors of several sites, on one line.
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
