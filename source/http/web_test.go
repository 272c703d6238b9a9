package http

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	nethttp "net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"svcproxy.dev/svcproxy/internal/logtest"
	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/source/remote"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A web is a server whose answers are set by a test.
type web struct {
	*httptest.Server
	mu      sync.Mutex
	answers map[string]nethttp.HandlerFunc
	asked   map[string]int // number of requests by status and path: "200 /svc/index.json"
	bearers map[string]bool
}

func newWeb(t testing.TB) *web { return newWebOver(t, nil) }

// newWebOver starts a web that uses TLS, unless config is nil.
func newWebOver(t testing.TB, config *tls.Config) *web {
	w := &web{answers: map[string]nethttp.HandlerFunc{}, asked: map[string]int{}, bearers: map[string]bool{}}
	w.Server = httptest.NewUnstartedServer(w)
	w.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	if config == nil {
		w.Start()
	} else {
		w.TLS = config
		w.StartTLS()
	}
	t.Cleanup(w.Close)
	return w
}

// ServeHTTP implements http.Handler.
func (w *web) ServeHTTP(out nethttp.ResponseWriter, r *nethttp.Request) {
	w.mu.Lock()
	answer := w.answers[r.URL.Path]
	w.bearers[r.Header.Get("Authorization")] = true
	w.mu.Unlock()
	if answer == nil {
		answer = nethttp.NotFound
	}
	s := &status{ResponseWriter: out, code: nethttp.StatusOK}
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.asked[fmt.Sprintf("%d %s", s.code, r.URL.Path)]++
	}()
	answer(s, r)
}

// A status remembers the status of an answer.
type status struct {
	nethttp.ResponseWriter
	code int
}

// WriteHeader implements http.ResponseWriter.
func (s *status) WriteHeader(code int) {
	s.code = code
	s.ResponseWriter.WriteHeader(code)
}

// Unwrap is for http.ResponseController.
func (s *status) Unwrap() nethttp.ResponseWriter { return s.ResponseWriter }

func (w *web) set(path string, answer nethttp.HandlerFunc) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.answers[path] = answer
}

func (w *web) count(status string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.asked[status]
}

// put serves a text with an ETag.
func (w *web) put(path, text string) { w.set(path, serve(text)) }

func serve(text string) nethttp.HandlerFunc {
	sum := sha256.Sum256([]byte(text))
	tag := `"` + hex.EncodeToString(sum[:8]) + `"`
	return func(out nethttp.ResponseWriter, r *nethttp.Request) {
		out.Header().Set("ETag", tag)
		nethttp.ServeContent(out, r, "x.bin", time.Time{}, strings.NewReader(text))
	}
}

// texts are files of an index, by name.
type texts map[string]string

// indexOf returns the text of an index.
func indexOf(version int, files texts, canaries ...string) string {
	type entry struct {
		URL    string `json:"url"`
		SHA256 string `json:"sha256"`
		Canary string `json:"canary,omitempty"`
	}
	list := []entry{}
	for name, text := range files {
		sum := sha256.Sum256([]byte(text))
		e := entry{URL: name, SHA256: hex.EncodeToString(sum[:])}
		if i := slices.Index(canaries, name); i >= 0 {
			e.Canary = canaries[i+1]
		}
		list = append(list, e)
	}
	slices.SortFunc(list, func(a, b entry) int { return strings.Compare(a.URL, b.URL) })
	text, _ := json.Marshal(map[string]any{"version": version, "files": list})
	return string(text)
}

// publish serves files below /svc/, and then their index.
func (w *web) publish(version int, files texts, canaries ...string) {
	for name, text := range files {
		w.put("/svc/"+name, text)
	}
	w.put("/svc/index.json", indexOf(version, files, canaries...))
}

// A followed is a running Fetcher, with what it has given, reported and logged.
type followed struct {
	*Fetcher
	t       testing.TB
	log     *logtest.Text
	end     context.CancelFunc
	mu      sync.Mutex
	sets    []remote.Set
	reports []error
}

// testInterval is how often tests poll.
const testInterval = 10 * time.Millisecond

// follow runs a Fetcher until the test ends, or end is called.
func follow(t testing.TB, o Options) *followed {
	if o.Interval == 0 {
		o.Interval = testInterval
	}
	if o.Timeout == 0 {
		o.Timeout = 10 * time.Second
	}
	if o.MaxSize == 0 {
		o.MaxSize = 1 << 20
	}
	f := &followed{t: t, log: &logtest.Text{}}
	o.Log = slog.New(slog.NewTextHandler(f.log, nil))
	f.Fetcher = New(o)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- f.Run(ctx, f.give, f.report) }()
	f.end = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("ended with %v", err)
		}
	})
	t.Cleanup(f.end)
	return f
}

func (f *followed) give(s remote.Set) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sets = append(f.sets, s)
}

func (f *followed) report(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reports = append(f.reports, err)
}

// given returns the last set as "version: name=text ...", and how many there were.
func (f *followed) given() (string, int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.sets) == 0 {
		return "", 0
	}
	return words(f.sets[len(f.sets)-1]), len(f.sets)
}

func words(s remote.Set) string {
	var b bytes.Buffer
	var versions []string
	for part := range strings.SplitSeq(s.Version, ", ") {
		versions = append(versions, part[strings.LastIndexByte(part, ' ')+1:])
	}
	fmt.Fprintf(&b, "%s:", strings.Join(versions, ","))
	for _, t := range s.Texts {
		fmt.Fprintf(&b, " %s=%s", t.Name[strings.LastIndexByte(t.Name, '/')+1:], t.Data)
		if t.Signed {
			b.WriteString("(signed)")
		}
	}
	for _, u := range s.Unknown {
		fmt.Fprintf(&b, " ?%s", u[strings.Index(u, "//")+2:][strings.IndexByte(u[strings.Index(u, "//")+2:], '/'):])
	}
	for _, u := range s.Empty {
		fmt.Fprintf(&b, " empty=%s", u[strings.LastIndexByte(u, '/'):])
	}
	return b.String()
}

// polls returns how many answers or failures were reported, and the last of them.
func (f *followed) polls() (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.reports) == 0 {
		return 0, nil
	}
	return len(f.reports), f.reports[len(f.reports)-1]
}

// expect waits for a set.
func (f *followed) expect(want string) {
	f.t.Helper()
	pace.UntilOr(f.t, func() bool { got, _ := f.given(); return got == want }, func() string {
		got, _ := f.given()
		_, err := f.polls()
		return fmt.Sprintf("got %q (%v), want %q", got, err, want)
	})
}

// refuses waits until a poll is refused for this reason, and then a later one too.
func (f *followed) refuses(want string) {
	f.t.Helper()
	for range 2 {
		before, _ := f.polls()
		pace.UntilOr(f.t, func() bool {
			n, err := f.polls()
			return n > before && err != nil && strings.Contains(err.Error(), want)
		}, func() string { _, err := f.polls(); return fmt.Sprintf("got %v, want an error with %q", err, want) })
	}
}

// settles waits for n more polls without an error.
func (f *followed) settles(n int) {
	f.t.Helper()
	before, _ := f.polls()
	pace.UntilOr(f.t, func() bool { now, err := f.polls(); return err == nil && now >= before+n }, func() string {
		_, err := f.polls()
		return fmt.Sprintf("got %v", err)
	})
}
