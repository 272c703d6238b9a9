//go:build netns

package lab

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"aead.dev/minisign"

	"svcproxy.dev/svcproxy/internal/echotest"
	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/internal/pace"
)

// A store on node serves service files by an index that is signed.
type store struct {
	key    minisign.PrivateKey
	public minisign.PublicKey

	mu      sync.Mutex
	polls   int               // how often the index was asked for
	answers map[string][]byte // by path
	instead http.HandlerFunc  // of every answer; nil: none
	server  *http.Server
}

const (
	storeAddr = "127.0.0.1:8088"
	indexURL  = "http://" + storeAddr + "/svc/index.json"
)

func newStore(t *testing.T) *store {
	t.Helper()
	public, private, err := minisign.GenerateKey(rand.Reader)
	fatal.If(t, err)
	return &store{key: private, public: public, answers: map[string][]byte{}}
}

// start begins to listen on a host.
func (s *store) start(t *testing.T, h *Host) {
	t.Helper()
	var l net.Listener
	fatal.If(t, h.Do(func() (err error) {
		l, err = echotest.Listen(storeAddr)
		return err
	}))
	server := &http.Server{Handler: s}
	s.server = server
	go func() { _ = server.Serve(l) }()
	t.Cleanup(s.stop)
}

// stop cuts all connections.
func (s *store) stop() { _ = s.server.Close() }

// publish serves files under a version of the index. It returns what is served then.
func (s *store) publish(version int, files map[string]string) map[string][]byte {
	type entry struct {
		URL    string `json:"url"`
		SHA256 string `json:"sha256"`
	}
	index := struct {
		Version int     `json:"version"`
		Files   []entry `json:"files"`
	}{version, []entry{}}
	answers := map[string][]byte{}
	for name, text := range files {
		index.Files = append(index.Files, entry{name, fmt.Sprintf("%x", sha256.Sum256([]byte(text)))})
		answers["/svc/"+name] = []byte(text)
	}
	text, _ := json.Marshal(index)
	signed := minisign.NewReader(bytes.NewReader(text))
	_, _ = io.Copy(io.Discard, signed)
	answers["/svc/index.json"] = text
	answers["/svc/index.json.minisig"] = signed.SignWithComments(s.key, "timestamp:1\tfile:index.json", "")
	s.serve(answers, nil)
	return answers
}

// serve serves answers, or something else in place of each.
func (s *store) serve(answers map[string][]byte, instead http.HandlerFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers, s.instead = answers, instead
}

// ServeHTTP implements http.Handler.
func (s *store) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	text, found := s.answers[r.URL.Path]
	instead := s.instead
	if r.URL.Path == "/svc/index.json" {
		s.polls++
	}
	s.mu.Unlock()
	switch {
	case instead != nil:
		instead(w, r)
	case !found:
		http.NotFound(w, r)
	default:
		w.Header().Set("ETag", fmt.Sprintf(`"%x"`, sha256.Sum256(text)))
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(text))
	}
}

// polled waits until the index was asked for so many times more.
func (s *store) polled(t *testing.T, times int) {
	t.Helper()
	asked := func() int {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.polls
	}
	until := asked() + times
	pace.Until(t, fmt.Sprint(times, " polls"), func() bool { return asked() >= until })
}

// answering returns a handler with one text for everything.
func answering(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) }
}

// storeFaults are what a store does instead of answering.
func storeFaults(s *store, old, now map[string][]byte) map[string]func() {
	with := func(name string, text []byte) map[string][]byte {
		changed := map[string][]byte{}
		for n, t := range now {
			changed[n] = t
		}
		changed[name] = text
		return changed
	}
	index := now["/svc/index.json"]
	return map[string]func(){
		"{}":      func() { s.serve(now, answering("{}")) },
		"nothing": func() { s.serve(now, answering("")) },
		"a page":  func() { s.serve(now, answering("<html>maintenance</html>")) },
		"an error": func() {
			s.serve(now, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) })
		},
		"a cut off index":     func() { s.serve(with("/svc/index.json", index[:len(index)/2]), nil) },
		"an old signed index": func() { s.serve(old, nil) },
		"two swapped texts": func() {
			next := s.publish(3, map[string]string{"web.json": string(now["/svc/web.json"]) + "\n", "mail.json": string(now["/svc/mail.json"]) + "\n"})
			next["/svc/web.json"], next["/svc/mail.json"] = next["/svc/mail.json"], next["/svc/web.json"]
			s.serve(next, nil)
		},
		"10 GB": func() {
			s.serve(now, func(w http.ResponseWriter, _ *http.Request) {
				block := bytes.Repeat([]byte(" "), 1<<16)
				for range 10 << 30 / len(block) {
					if _, err := w.Write(block); err != nil {
						return
					}
				}
			})
		},
		"304 to everything": func() {
			s.serve(now, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotModified) })
		},
		"a redirect elsewhere": func() { s.serve(now, http.RedirectHandler("http://127.0.0.1:1/", http.StatusFound).ServeHTTP) },
		"an answer without end": func() {
			s.serve(now, func(w http.ResponseWriter, r *http.Request) {
				_, _ = w.Write(index[:1])
				_ = http.NewResponseController(w).Flush()
				select {
				case <-r.Context().Done():
				case <-time.After(time.Minute):
				}
			})
		},
	}
}

// Whatever a store of service files does, the services that it had go on: connections that are held, and new ones. A start
// while it is gone serves the last known services.
func TestStore(t *testing.T) {
	t.Parallel()
	m := modes[slices.IndexFunc(modes, func(m mode) bool { return m.name == "nftables" })]
	e := &env{Lab: newLab(t), mode: m, number: 1}
	s := newStore(t)
	s.start(t, e.Node)
	web := e.everywhere(at(e.Local[0])...)
	web.Name = "web"
	mail := e.service(at(e.Local[1])...)
	mail.Name, mail.VIPs = "mail", e.vip(2).Each()
	files := map[string]string{}
	for _, service := range []Service{web, mail} {
		text, err := File(service)
		fatal.If(t, err)
		files[service.Name+".json"] = text
	}
	old := s.publish(1, map[string]string{"web.json": files["web.json"]})
	now := s.publish(2, files)

	e.daemon = newDaemon(t, e.Lab, m)
	e.settings = fmt.Sprintf("mode = %q\nnode_name = \"node\"\nsources = [\"http\"]\n[http]\nurls = [%q]\ninterval = \"100ms\"\ntimeout = \"1s\"\npublic_key = %q\n", m.name, indexURL, s.public)
	if err := errors.Join(m.prepare(e.Node), e.daemon.Settings(e.settings), e.daemon.Start()); err != nil {
		t.Fatalf("%v\n%s", err, e.daemon.LogTail(logLines))
	}
	served := []check{{from: e.Client, to: e.vip(1), want: by(e.Local[0])}, {from: e.Client, to: e.vip(2), want: by(e.Local[1])}}
	e.expect(t, served...)
	var conns []*Conn
	for len(conns) < 1000 {
		conns = append(conns, e.connections(t, e.Client, e.vip(1), 80)...)
	}
	goesOn := func(t *testing.T, when string) {
		t.Helper()
		e.goOn(t, when, conns)
		e.expect(t, served...)
	}

	for name, begin := range storeFaults(s, old, now) {
		t.Run(name, func(t *testing.T) {
			begin()
			s.polled(t, 3)
			goesOn(t, "beside "+name)
			text, err := e.daemon.Command("status")
			if told := strings.Contains(text, indexURL); err == nil && !told && name != "304 to everything" {
				t.Errorf("status says nothing of it:\n%s", text)
			}
			s.serve(now, nil)
			s.polled(t, 2)
			goesOn(t, "after "+name)
		})
	}

	s.stop()
	start := time.Now()
	for time.Since(start) < 600*100*time.Millisecond { // 600 polls
		time.Sleep(10 * time.Second)
		goesOn(t, "while the store is gone")
	}
	fatal.If(t, errors.Join(e.daemon.Stop(), e.daemon.Start()))
	start = time.Now()
	goesOn(t, "after a start while the store is gone")
	t.Logf("after a start without the store, all answered %s after svcproxy was ready", time.Since(start))

	delete(files, "mail.json")
	s.publish(4, files)
	s.start(t, e.Node)
	served[1].want = e.givenUp()
	goesOn(t, "once the store is back")
}
