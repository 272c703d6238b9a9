package statuspage

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/cmd/internal/changes"
	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/policy/policytest"
	"svcproxy.dev/svcproxy/proxier/report"
	"svcproxy.dev/svcproxy/source"
)

func TestTooManyObjects(t *testing.T) {
	w := newWorld()
	files := make([]source.FileStatus, changes.MaxObjects+1)
	for i := range files {
		files[i].Path = fmt.Sprint(i)
	}
	w.sources = []source.Status{{Files: files}}
	if rec := get(t, w.page(), "/api/v1/events", http.StatusServiceUnavailable); !strings.Contains(rec.Body.String(), "more than 200000 endpoints") {
		t.Error(rec.Body)
	}
}

// A watcher is a client that reads events.
type watcher struct {
	*testing.T
	resp *http.Response
	in   *bufio.Scanner
}

func watch(t *testing.T, url, id string) *watcher {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	fatal.If(t, err)
	if id != "" {
		req.Header.Set("Last-Event-ID", id)
	}
	resp, err := http.DefaultClient.Do(req)
	fatal.If(t, err)
	t.Cleanup(func() { cancel(); resp.Body.Close() })
	if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatalf("%s: %s %v", url, resp.Status, resp.Header)
	}
	return &watcher{t, resp, bufio.NewScanner(resp.Body)}
}

// next returns the next event, with its ID.
func (w *watcher) next() (kind, id string, ch changes.Change) {
	w.Helper()
	for w.in.Scan() {
		key, value, _ := strings.Cut(w.in.Text(), ": ")
		switch key {
		case "id":
			id = value
		case "event":
			kind = value
		case "data":
			fatal.If(w, json.Unmarshal([]byte(value), &ch))
			return kind, id, ch
		}
	}
	w.Fatalf("the stream has ended: %v", w.in.Err())
	return "", "", changes.Change{}
}

// begin returns the ID before the first event.
func (w *watcher) begin() string {
	w.Helper()
	if w.in.Scan(); !strings.HasPrefix(w.in.Text(), "id: ") {
		w.Fatalf("the stream begins with %q", w.in.Text())
	}
	return strings.TrimPrefix(w.in.Text(), "id: ")
}

func (w *watcher) expect(kind, name, state string) (id string) {
	w.Helper()
	gotKind, id, ch := w.next()
	if gotKind != kind || ch.Name != name || ch.State != state {
		w.Errorf("%s %+v, want %s %s %s", gotKind, ch, kind, name, state)
	}
	return id
}

// A client gets changes when they are noticed, for longer than the timeouts of the server. A client that reconnects gets the
// changes that it has missed.
func TestEvents(t *testing.T) {
	w := newWorld()
	w.add("web", policytest.Conditions("10.0.0.1 passed", "10.0.0.2 passed"), policytest.Probed, policytest.Endpoints("10.0.0.1", "10.0.0.2"))
	w.sources = []source.Status{{Files: []source.FileStatus{{Path: "web.toml", State: source.Accepted}}}}
	p := w.page()
	now := make(chan *report.Snapshot, 1)
	now <- w.Snapshot
	p.Changes.Snapshot = func() *report.Snapshot {
		s := <-now
		now <- s
		return s
	}
	set := func(known ...string) {
		<-now
		changed := *w.Snapshot
		changed.Services = slices.Clone(w.Services)
		changed.Services[0].Conditions = policytest.Conditions(known...)
		changed.Syncs = []report.Family{{Family: policy.IPv4, Known: true, Resolved: []*policy.Resolved{
			policy.Resolve(changed.Services[0].Service, changed.Services[0].Conditions, w.Node, policy.IPv4),
		}}}
		now <- &changed
	}
	mux := http.NewServeMux()
	p.AddTo(mux)
	srv := httptest.NewUnstartedServer(mux)
	srv.Config.ReadTimeout, srv.Config.WriteTimeout = 500*time.Millisecond, 500*time.Millisecond
	srv.Start()
	t.Cleanup(srv.Close) // after its clients
	t.Cleanup(http.DefaultClient.CloseIdleConnections)

	first := watch(t, srv.URL+"/api/v1/events", "")
	begin := watch(t, srv.URL+"/api/v1/events", "").begin()
	all := watch(t, srv.URL+"/api/v1/events?all", "")
	all.expect("endpoint", "10.0.0.1", "up")
	all.expect("endpoint", "10.0.0.2", "up")
	all.expect("address", "10.96.0.10:80/tcp", "balance")
	all.expect("file", "web.toml", "accepted")
	all.expect("mode", "mode", "nftables")
	all.expect("host", "here", "in use")
	all.expect("repairs", "IPv4", "0")
	time.Sleep(time.Second) // longer than the timeouts
	set("10.0.0.1 failed", "10.0.0.2 passed")
	id := first.expect("endpoint", "10.0.0.1", "down")
	all.expect("endpoint", "10.0.0.1", "down")
	set("10.0.0.1 failed", "10.0.0.2 failed")
	first.expect("endpoint", "10.0.0.2", "down")
	first.expect("address", "10.96.0.10:80/tcp", "all down")
	set("10.0.0.1 passed", "10.0.0.2 failed")
	first.expect("endpoint", "10.0.0.1", "up")
	first.expect("address", "10.96.0.10:80/tcp", "balance")

	quiet := watch(t, srv.URL+"/api/v1/events", begin) // it had read no event
	quiet.expect("endpoint", "10.0.0.2", "down")

	again := watch(t, srv.URL+"/api/v1/events", id)
	again.expect("endpoint", "10.0.0.2", "down")
	again.expect("endpoint", "10.0.0.1", "up")
	again.expect("address", "10.96.0.10:80/tcp", "balance")
	get(t, p, "/api/v1/events?all;", http.StatusBadRequest)
	for _, id := range []string{"other-7", "x", p.watchers.run + "-99999", p.watchers.run + "-0"} {
		lost := watch(t, srv.URL+"/api/v1/events", id)
		if kind, _, _ := lost.next(); kind != "reset" {
			t.Errorf("ID %s: %s, want a reset", id, kind)
		}
		lost.expect("file", "web.toml", "accepted")
	}
}

// The number of clients is bounded. New clients are accepted after others have gone.
func TestWatchersAreBounded(t *testing.T) {
	p := newWorld().page()
	for range maxWatchers {
		fatal.If(t, p.watchers.join())
	}
	get(t, p, "/api/v1/events", http.StatusServiceUnavailable)
	for range maxWatchers {
		p.watchers.leave()
	}
	fatal.If(t, p.watchers.join())
	p.watchers.leave()
}

// A client that does not read is dropped.
func TestSlowWatcherIsDropped(t *testing.T) {
	defer func(d time.Duration) { writeTime = d }(writeTime)
	writeTime = 50 * time.Millisecond
	w := newWorld()
	long := strings.Repeat("x", 200)
	for i := range 20_000 {
		w.sources = append(w.sources, source.Status{Files: []source.FileStatus{{Path: long + fmt.Sprint(i), State: source.Accepted}}})
	}
	p := w.page()
	mux := http.NewServeMux()
	p.AddTo(mux)
	srv := httptest.NewServer(mux)
	defer srv.Close()
	conn, err := net.Dial("tcp", srv.Listener.Addr().String())
	fatal.If(t, err)
	defer conn.Close()
	_, err = fmt.Fprintf(conn, "GET /api/v1/events?all HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
	fatal.If(t, err)
	watching := func() int {
		p.watchers.mu.Lock()
		defer p.watchers.mu.Unlock()
		return p.watchers.n
	}
	pace.Until(t, "a watcher", func() bool { return watching() == 1 })
	pace.Until(t, "it is dropped", func() bool { return watching() == 0 })
}

// Events are rendered within the budget of all answers.
func TestEventsKeepTheBudget(t *testing.T) {
	w := newWorld()
	w.sources = []source.Status{{Files: []source.FileStatus{{Path: "web.toml", State: source.Accepted}}}}
	p := w.page()
	mux := http.NewServeMux()
	p.AddTo(mux)
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	end, err := p.answers.budget.begin(t.Context())
	fatal.If(t, err)
	all := watch(t, srv.URL+"/api/v1/events?all", "")
	got := make(chan string)
	go func() {
		all.in.Scan() // ID
		for all.in.Scan() {
			if line := all.in.Text(); strings.HasPrefix(line, "event: ") {
				got <- line
				return
			}
		}
		close(got)
	}()
	select {
	case line := <-got:
		end()
		t.Fatalf("%q is there while another answer is rendered", line)
	case <-time.After(200 * time.Millisecond):
	}
	end()
	if line := <-got; line != "event: file" {
		t.Errorf("%q", line)
	}
}

// The handler does not wait for a request body that the client has announced and does not send.
func TestEventsWithoutTheBody(t *testing.T) {
	p := newWorld().page()
	mux := http.NewServeMux()
	p.AddTo(mux)
	srv := httptest.NewUnstartedServer(mux)
	srv.Config.ReadTimeout = 200 * time.Millisecond
	srv.Start()
	t.Cleanup(srv.Close)
	conn, err := net.Dial("tcp", srv.Listener.Addr().String())
	fatal.If(t, err)
	defer conn.Close()
	_, err = fmt.Fprintf(conn, "GET /api/v1/events HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 10\r\n\r\n")
	fatal.If(t, err)
	fatal.If(t, conn.SetReadDeadline(time.Now().Add(10*time.Second)))
	if line, err := bufio.NewReader(conn).ReadString('\n'); err != nil || !strings.HasPrefix(line, "HTTP/1.1 200") {
		t.Errorf("%q, %v", line, err)
	}
}
