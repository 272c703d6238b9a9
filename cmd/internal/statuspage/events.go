package statuspage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"svcproxy.dev/svcproxy/cmd/internal/changes"
	"svcproxy.dev/svcproxy/source"
)

const (
	// maxWatchers is how many clients can watch at once.
	maxWatchers = 32

	// perWrite is how many changes are written at once.
	perWrite = 500

	// quietTime is the time without a change after which a client gets a comment, so that proxies keep the connection open.
	quietTime = 15 * time.Second
)

// writeTime is how long a client may take to read changes. A slower client is disconnected. It can reconnect with the number
// of the last change that it has read.
var writeTime = 10 * time.Second

var (
	errWatchers = fmt.Errorf("%d clients watch already; ask again later", maxWatchers)
	errObjects  = fmt.Errorf("there are more than %d endpoints, addresses and files; ask /api/v1/status again and again", changes.MaxObjects)
)

// watchers are the clients of /api/v1/events.
type watchers struct {
	run string // identifies this run of the daemon, because each run numbers its changes from the start

	mu sync.Mutex
	n  int
}

// join adds a client, unless there are too many.
func (w *watchers) join() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.n >= maxWatchers {
		return errWatchers
	}
	w.n++
	return nil
}

func (w *watchers) leave() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.n--
}

// serveEvents sends changes to a client as server-sent events until the client disconnects.
func (p *Page) serveEvents(w http.ResponseWriter, r *http.Request) {
	q, err := parseQuery(r.URL.RawQuery)
	if err != nil {
		refuse(w, http.StatusBadRequest, err)
		return
	}
	for key := range q {
		if key != "all" {
			refuse(w, http.StatusBadRequest, fmt.Errorf("unknown key %s; want all", source.Excerpt(key)))
			return
		}
	}
	if r.Method == http.MethodHead {
		secure(w.Header(), eventText)
		return
	}
	if err := p.watchers.join(); err != nil {
		w.Header().Set("Retry-After", "10")
		refuse(w, http.StatusServiceUnavailable, err)
		return
	}
	defer p.watchers.leave()
	p.Changes.Join()
	defer p.Changes.Leave()
	p.Changes.Update()
	seen, reset, err := p.begin(r.Header.Get("Last-Event-ID"), q.Has("all"))
	if err != nil {
		refuse(w, http.StatusServiceUnavailable, err)
		return
	}
	secure(w.Header(), eventText)
	s := &stream{w: w, control: http.NewResponseController(w), run: p.watchers.run, seen: changes.Cursor{Number: seen}}
	if s.hello(reset) == nil {
		p.follow(r, s)
	}
}

// follow sends changes to a client until the client disconnects or is too slow.
func (p *Page) follow(r *http.Request, s *stream) {
	again := time.NewTicker(changes.Moment)
	defer again.Stop()
	for {
		p.Changes.Update()
		for more := true; more; {
			var text string
			var err error
			if text, more, err = p.news(r.Context(), s); err != nil || s.send(text) != nil {
				return
			}
		}
		if _, _, tooMany := p.Changes.Position(); tooMany {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-again.C:
		}
	}
}

// news waits for a turn in the budget of all answers, and returns the next changes as text. It reports whether there may be more.
func (p *Page) news(ctx context.Context, s *stream) (text string, more bool, err error) {
	if last, _, _ := p.Changes.Position(); last == s.seen.Number {
		return "", false, nil
	}
	end, err := p.answers.budget.begin(ctx)
	if err != nil {
		return "", false, err
	}
	defer end()
	list := p.Changes.Since(&s.seen, perWrite)
	text, err = s.text(list)
	return text, len(list) == perWrite, err
}

// begin returns the number after which a client gets changes, and whether it has missed changes that were forgotten. Without the
// ID of an event, a client gets changes from now on or, with all, the state of all objects first.
func (p *Page) begin(id string, all bool) (seen uint64, reset bool, err error) {
	last, from, tooMany := p.Changes.Position()
	run, text, _ := strings.Cut(id, "-")
	number, bad := strconv.ParseUint(text, 10, 64)
	switch {
	case tooMany:
		return 0, false, errObjects
	case id == "" && all:
		return 0, false, nil
	case id == "":
		return last, false, nil
	case bad != nil || run != p.watchers.run || number < from || number > last:
		return 0, true, nil
	}
	return number, false, nil
}

// A stream is the stream of events to one client.
type stream struct {
	w       http.ResponseWriter
	control *http.ResponseController
	run     string
	seen    changes.Cursor // the last change that was written
	wrote   time.Time      // time of the last write
}

// hello begins the stream with an ID, for clients that are disconnected before they have read an event. If reset is set, it tells
// the client to discard its state, because the state of all objects follows.
func (s *stream) hello(reset bool) error {
	text := fmt.Sprintf("id: %s-%d\nretry: 5000\n: changes of endpoints, addresses, announcements, files, routers, mode, host and repairs follow\n\n", s.run, s.seen.Number)
	if reset {
		text += "event: reset\ndata: {}\n\n"
	}
	return s.send(text)
}

// text returns changes as events.
func (s *stream) text(list []changes.Change) (string, error) {
	var b strings.Builder
	for i := range list {
		ch := &list[i]
		if ch.Nothing() {
			continue
		}
		data, err := json.Marshal(ch)
		if err != nil {
			return "", fmt.Errorf("writing a change: %w", err)
		}
		fmt.Fprintf(&b, "id: %s-%d\nevent: %s\ndata: %s\n\n", s.run, ch.Number, ch.Kind, data)
	}
	return b.String(), nil
}

// send sends text, or a comment if text is empty and nothing was sent for quietTime. It fails if the client does not read in time.
func (s *stream) send(text string) error {
	if text == "" {
		if time.Since(s.wrote) < quietTime {
			return nil
		}
		text = ": nothing has changed\n\n"
	}
	s.wrote = time.Now()
	if err := s.control.SetWriteDeadline(s.wrote.Add(writeTime)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	if _, err := s.w.Write([]byte(text)); err != nil {
		return err
	}
	return s.control.Flush()
}
