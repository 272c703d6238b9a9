package lab

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"aead.dev/minisign"

	"svcproxy.dev/svcproxy/internal/echotest"
)

// Where a Store is, on its host.
const (
	StorePort = "8088"
	StoreAddr = "127.0.0.1:" + StorePort
	IndexURL  = "http://" + StoreAddr + indexPath

	indexPath     = "/svc/index.json"
	signaturePath = indexPath + ".minisig"
)

// A Store is a web server on a host with service files and an index of them that is signed.
type Store struct {
	Public minisign.PublicKey // of the signatures

	key    minisign.PrivateKey
	server *http.Server // nil: it does not listen

	mu      sync.Mutex
	version int // of the last index that was published
	polls   int // requests for the index
	pages   Pages
	instead http.HandlerFunc // of every answer; nil: none
}

// Pages are the answers of a Store, by their paths.
type Pages map[string][]byte

// NewStore returns a Store with a new key that does not listen and has nothing.
func NewStore() (*Store, error) {
	public, private, err := minisign.GenerateKey(rand.Reader)
	return &Store{key: private, Public: public}, err
}

// Start begins to listen on a host.
func (s *Store) Start(h *Host) error {
	var l net.Listener
	err := h.Do(func() (err error) {
		l, err = echotest.Listen(StoreAddr)
		return err
	})
	if err != nil {
		return fmt.Errorf("starting a store: %w", err)
	}
	server := &http.Server{Handler: s}
	s.server = server
	go func() { _ = server.Serve(l) }()
	return nil
}

// Stop stops to listen, and closes all connections.
func (s *Store) Stop() {
	if s.server != nil {
		_ = s.server.Close()
		s.server = nil
	}
}

// Make returns the pages of an index of the next version, which are not served yet. Texts are by their names.
func (s *Store) Make(texts map[string]string) Pages {
	type entry struct {
		URL    string `json:"url"`
		SHA256 string `json:"sha256"`
	}
	s.mu.Lock()
	s.version++
	index := struct {
		Version int     `json:"version"`
		Files   []entry `json:"files"`
	}{s.version, []entry{}}
	s.mu.Unlock()
	pages := Pages{}
	for name, text := range texts {
		index.Files = append(index.Files, entry{name, fmt.Sprintf("%x", sha256.Sum256([]byte(text)))})
		pages["/svc/"+name] = []byte(text)
	}
	text, _ := json.Marshal(index)
	signed := minisign.NewReader(bytes.NewReader(text))
	_, _ = io.Copy(io.Discard, signed)
	pages[indexPath], pages[signaturePath] = text, signed.SignWithComments(s.key, "timestamp:1\tfile:index.json", "")
	return pages
}

// Publish makes pages, and serves them in one step.
func (s *Store) Publish(texts map[string]string) Pages {
	pages := s.Make(texts)
	s.Serve(pages, nil)
	return pages
}

// Serve serves pages, or something else in place of each.
func (s *Store) Serve(pages Pages, instead http.HandlerFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pages, s.instead = pages, instead
}

// Restore ends a fault that began when the last version was another: it serves pages again, under a new version
// if one was made meanwhile, and returns what it serves.
func (s *Store) Restore(pages Pages, version int) Pages {
	if s.Version() != version {
		return s.Publish(pages.texts(""))
	}
	s.Serve(pages, nil)
	return pages
}

// Version returns the version of the last index that was made.
func (s *Store) Version() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.version
}

// Polls returns how often the index was asked for.
func (s *Store) Polls() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.polls
}

// ServeHTTP implements http.Handler.
func (s *Store) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	h := s.instead
	if h == nil {
		h = s.pages.ServeHTTP
	}
	if r.URL.Path == indexPath {
		s.polls++
	}
	s.mu.Unlock()
	h(w, r)
}

// ServeHTTP implements http.Handler.
func (p Pages) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	text, found := p[r.URL.Path]
	if !found {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("ETag", fmt.Sprintf(`"%x"`, sha256.Sum256(text)))
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(text))
}

// answering returns a handler with one text for everything.
func answering(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) }
}

// A StoreFault is what a Store may serve in place of the texts that it has now. What it had once, others may have signed.
type StoreFault struct {
	Name  string
	Begin func(s *Store, was, now Pages)
	Old   bool // it serves what was valid once: without signatures, a start does not know that
}

// StoreFaults are faults that must not change services.
var StoreFaults = []StoreFault{
	{Name: "{}", Begin: instead(answering("{}"))},
	{Name: "nothing", Begin: instead(answering(""))},
	{Name: "a page", Begin: instead(answering("<html>maintenance</html>"))},
	{Name: "an error", Begin: instead(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) })},
	{Name: "a cut off index", Begin: func(s *Store, _, now Pages) {
		s.Serve(now.with(indexPath, now[indexPath][:len(now[indexPath])/2]), nil)
	}},
	{Name: "a connection that is cut", Begin: instead(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "1000")
		_, _ = io.WriteString(w, "{")
		panic(http.ErrAbortHandler)
	})},
	{Name: "an old index", Begin: func(s *Store, was, _ Pages) { s.Serve(was, nil) }, Old: true},
	{Name: "an empty index", Begin: func(s *Store, _, _ Pages) { s.Publish(nil) }},
	{Name: "two swapped texts", Begin: func(s *Store, _, now Pages) {
		next, names := s.Make(now.texts("\n")), now.names()
		a, b := "/svc/"+names[0], "/svc/"+names[len(names)-1]
		next[a], next[b] = next[b], next[a]
		s.Serve(next, nil)
	}},
	{Name: "texts of before", Begin: func(s *Store, was, now Pages) {
		next := s.Make(now.texts("\n"))
		for _, name := range was.names() {
			next["/svc/"+name] = was["/svc/"+name]
		}
		s.Serve(next, nil)
	}},
	{Name: "an index without its texts", Begin: func(s *Store, _, now Pages) {
		next := s.Make(now.texts("\n"))
		s.Serve(Pages{indexPath: next[indexPath], signaturePath: next[signaturePath]}, nil)
	}},
	{Name: "10 GB", Begin: instead(func(w http.ResponseWriter, _ *http.Request) {
		block := bytes.Repeat([]byte(" "), 1<<16)
		for range 10 << 30 / len(block) {
			if _, err := w.Write(block); err != nil {
				return
			}
		}
	})},
	{Name: "304 to everything", Begin: instead(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotModified) })},
	{Name: "a redirect elsewhere", Begin: instead(http.RedirectHandler("http://127.0.0.1:1/", http.StatusFound).ServeHTTP)},
	{Name: "an answer without end", Begin: instead(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "{")
		_ = http.NewResponseController(w).Flush()
		select {
		case <-r.Context().Done():
		case <-time.After(time.Minute):
		}
	})},
}

// instead is the fault of a handler for everything.
func instead(h http.HandlerFunc) func(s *Store, was, now Pages) {
	return func(s *Store, _, now Pages) { s.Serve(now, h) }
}

// with returns pages of which one is another.
func (p Pages) with(path string, text []byte) Pages {
	changed := maps.Clone(p)
	changed[path] = text
	return changed
}

// names returns the names of the texts, sorted.
func (p Pages) names() (names []string) {
	for path := range p {
		if path != indexPath && path != signaturePath {
			names = append(names, path[len("/svc/"):])
		}
	}
	slices.Sort(names)
	return names
}

// texts returns the texts by their names, each with more behind it.
func (p Pages) texts(more string) map[string]string {
	texts := map[string]string{}
	for _, name := range p.names() {
		texts[name] = string(p["/svc/"+name]) + more
	}
	return texts
}
