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

	// quietTime is after what time without a change a client gets a comment, so that who is in between keeps the connection.
	quietTime = 15 * time.Second
)

// writeTime is how long a client may take to read changes. A slower one is dropped; it comes back with the number of the
// last change that it has read.
var writeTime = 10 * time.Second

var (
	errWatchers = fmt.Errorf("%d clients watch already; ask again later", maxWatchers)
	errObjects  = fmt.Errorf("there are more than %d endpoints, addresses and files; ask /api/v1/status again and again", changes.MaxObjects)
)

// watchers are the clients of /api/v1/events.
type watchers struct {
	run string // tells the numbers of this daemon from those of an earlier one

	mu sync.Mutex
	n  int
}

// join counts a client in, unless there are too many.
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

// serveEvents tells a client of changes until it goes, as server-sent events.
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

// follow tells a client of changes until it goes, or is too slow.
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

// news returns the next changes as text, when it is the turn of the client: they are rendered within the budget of all answers. It
// reports whether there may be more.
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

// begin returns behind which number a client is to be told of changes, and whether it has missed some for good. Without the
// ID of an event it begins now or, if it wants all, with the state of everything.
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

// A stream is what one client reads.
type stream struct {
	w       http.ResponseWriter
	control *http.ResponseController
	run     string
	seen    changes.Cursor // the last change that was written
	wrote   time.Time      // at last
}

// hello begins the stream. Its ID is for a client that is cut off before it has read an event. reset: what the client knows is not
// to be used any more, all follows.
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

// send sends text now, or a comment where there has been none for long. It fails where the client does not read it in time.
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
