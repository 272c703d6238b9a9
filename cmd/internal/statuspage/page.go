// Package statuspage serves the status of a host over HTTP, read-only: as pages for people, and as JSON for programs.
//
// A Page uses two caches: facts are gathered at most once a second, and each answer is rendered and compressed at most once a
// second, however many clients there are. The processor time for rendering is limited, see budget. Pages have no scripts.
//
//	page.go      routes and headers
//	question.go  parses query strings
//	facts.go     the data that all answers of a moment share
//	answers.go   the cache of answers, and the budget
//	view.go      the data of the templates; rows.go, page.html, style.css
//	api.go       JSON; openapi.json
//	events.go    the stream of changes
package statuspage

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"

	"svcproxy.dev/svcproxy/cmd/internal/changes"
	"svcproxy.dev/svcproxy/cmd/internal/control"
	"svcproxy.dev/svcproxy/internal/lately"
	"svcproxy.dev/svcproxy/proxier/report"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/keep"
)

// Config has the functions that a Page gets its data from. They may be called from any goroutine.
type Config struct {
	// Summary returns a summary of the status with up to most problems, and the status of all sources.
	Summary func(ctx context.Context, most int) (control.Summary, []source.Status)

	Changes  *changes.Tracker
	Snapshot func() *report.Snapshot
	Counts   func() report.Counts

	// AddTraffic adds traffic counters to the status of services, if they are already being counted.
	AddTraffic func(ctx context.Context, list []report.ServiceStatus)

	// History returns the accepted versions of service files, the newest first. It may read from a disk.
	History func() ([]keep.Revision, error)
}

const (
	// moment is how old facts and answers may be.
	moment = time.Second

	// historyMoment is how old the history of files may be, which is read from a disk.
	historyMoment = 10 * time.Second

	// patience is how long a request waits for new facts or a new history.
	patience = time.Second

	// turnPatience is how long a request waits for a turn to render.
	turnPatience = 10 * time.Second
)

// A Page answers requests.
type Page struct {
	Config
	facts   lately.Value[*facts]
	history lately.Value[history]
	answers answers

	watchers watchers
}

// New returns a Page.
func New(c Config) *Page {
	p := &Page{Config: c, answers: answers{kept: make(map[string]*answer), budget: newBudget()}}
	p.answers.facts = func() { p.facts.Get() }
	p.facts = lately.Value[*facts]{Find: p.gather, Moment: moment, Patience: patience}
	p.watchers.run = strconv.FormatInt(time.Now().UnixNano(), 36)
	p.history = lately.Value[history]{Find: p.versions, Moment: historyMoment, Patience: patience}
	return p
}

// AddTo adds the pages and the JSON below /api/v1 to mux. They refuse methods other than GET and HEAD.
func (p *Page) AddTo(mux *http.ServeMux) {
	add := func(path string, serve http.HandlerFunc) {
		mux.HandleFunc("GET "+path, serve)
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Allow", "GET, HEAD")
			refuse(w, http.StatusMethodNotAllowed, errReadOnly)
		})
	}
	for path, serve := range map[string]func(*http.Request) (kind, func(io.Writer) error, error){
		"/{$}":             p.overview,
		"/files":           p.files,
		"/api/v1/status":   p.apiStatus,
		"/api/v1/services": p.apiServices,
		"/api/v1/files":    p.apiFiles,
	} {
		add(path, func(w http.ResponseWriter, r *http.Request) { p.serve(w, r, serve) })
	}
	add("/api/v1/events", p.serveEvents)
	add("/api/v1/openapi.json", func(w http.ResponseWriter, _ *http.Request) {
		secure(w.Header(), jsonText)
		_, _ = w.Write(openAPI)
	})
}

var errReadOnly = errors.New("nothing can be changed here; use svcproxy on the host")

// A kind is the content type and the content security policy of an answer.
type kind struct{ contentType, policy string }

var (
	//go:embed style.css
	style string

	//go:embed openapi.json
	openAPI []byte

	htmlText  = kind{"text/html; charset=utf-8", "default-src 'none'; style-src 'sha256-" + hashOf(style) + "'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"}
	jsonText  = kind{"application/json", "default-src 'none'; frame-ancestors 'none'"}
	eventText = kind{"text/event-stream", jsonText.policy}
	plain     = kind{"text/plain; charset=utf-8", jsonText.policy}
)

func hashOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return base64.StdEncoding.EncodeToString(sum[:])
}

// secure sets the headers of an answer, so that browsers do not run scripts, frame the page, guess its type or cache it.
func secure(h http.Header, k kind) {
	h.Set("Content-Type", k.contentType)
	h.Set("Content-Security-Policy", k.policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
	h.Set("Vary", "Accept-Encoding")
}

// serve answers a request. ask parses the question, and returns the kind of the answer and a function that writes it.
func (p *Page) serve(w http.ResponseWriter, r *http.Request, ask func(*http.Request) (kind, func(io.Writer) error, error)) {
	k, render, err := ask(r)
	if err != nil {
		refuse(w, http.StatusBadRequest, err)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), turnPatience)
	defer cancel()
	a, err := p.answers.get(ctx, r.URL.Path+"?"+r.URL.Query().Encode(), render)
	switch {
	case errors.Is(err, errBusy), errors.Is(err, errUnknown):
		w.Header().Set("Retry-After", "10")
		refuse(w, http.StatusServiceUnavailable, err)
	case err != nil:
		refuse(w, http.StatusInternalServerError, err)
	default:
		secure(w.Header(), k)
		a.writeTo(w, r)
	}
}

func refuse(w http.ResponseWriter, code int, err error) {
	secure(w.Header(), plain)
	w.WriteHeader(code)
	_, _ = io.WriteString(w, source.Printable(err.Error())+"\n")
}
